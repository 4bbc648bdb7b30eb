package outboxdispatcher

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/migrate"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// resolveOutbox returns the Outbox that is referred to, nil for a database of the dispatcher's own. Pods that run stay as
// they are when there is none.
func (r *Reconciler) resolveOutbox(ctx context.Context, obd *v1alpha1.OutboxDispatcher) (*v1alpha1.Outbox, error) {
	ref := obd.Spec.OutboxRef
	if ref == nil {
		return nil, nil
	}
	outbox := &v1alpha1.Outbox{}
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: obd.Namespace, Name: ref.Name}, outbox)
	if apierrors.IsNotFound(err) {
		return nil, problem.Waiting(v1alpha1.ReferencesResolvedCondition, v1alpha1.ReasonOutboxNotFound, fmt.Sprintf(
			"Outbox %q, which spec.outboxRef names, does not exist in namespace %q; create it, and the operator continues.", ref.Name, obd.Namespace))
	}
	if err != nil {
		return nil, fmt.Errorf("read Outbox %s: %w", ref.Name, err)
	}
	if err := r.Whole(ctx, outbox); err != nil {
		return outbox, err
	}
	return outbox, problem.Incomplete(v1alpha1.WorkloadAvailableCondition, "Outbox", ref.Name, outbox.Spec)
}

// migration runs the migration Job of the dispatcher's own database; for an Outbox it watches that of the Outbox, and
// removes Jobs of its own. Another operator, which manages the Outbox, makes the Job for the image of its own.
func (r *Reconciler) migration(ctx context.Context, obd *v1alpha1.OutboxDispatcher, outbox *v1alpha1.Outbox) (migrate.Migration, error) {
	wanted, err := desired.NewMigration(obd, r.Platform)
	if err != nil {
		return migrate.Migration{}, podTemplateProblem(err)
	}
	made, err := r.migrations.Run(ctx, obd, wanted)
	if err != nil || outbox == nil {
		return made, err
	}
	if wanted, err = desired.NewOutboxMigration(outbox, r.Platform); err != nil { // which is in the Outbox's status
		return migrate.Migration{State: migrate.Failed, Of: "Outbox " + outbox.Name, Detail: err.Error()}, nil
	}
	seen, err := r.migrations.Look(ctx, outbox, wanted)
	if holder := outbox.Status.Operator; err == nil && seen.Unmade && outbox.Status.Migration == string(migrate.Succeeded) && holder != "" && holder != r.Operator {
		return migrate.Migration{}, problem.Waiting(v1alpha1.ReferencesResolvedCondition, v1alpha1.ReasonManagedByAnotherOperator, fmt.Sprintf(
			"The operator of namespace %q manages Outbox %q, and that of namespace %q this dispatcher, whose image needs another migration than the one that has run. Hand one of the two over by setting its status.operator to null.",
			holder, outbox.Name, r.Operator))
	}
	return seen, err
}
