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

// resolveOutbox returns the Outbox that is referred to, nil for a database of the dispatcher's own, and puts its spec in
// the place of that, for this pass. Pods that run stay as they are when there is none.
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
	obd.Spec.Database = &outbox.Spec.OutboxSpec
	return outbox, nil
}

// migrator is who else runs the migration: the Outbox that is referred to; for a database of the dispatcher's own, the
// oldest Outbox that says the same of it, or the oldest dispatcher that does. It is nil when there is none.
func (r *Reconciler) migrator(obd *v1alpha1.OutboxDispatcher, outbox *v1alpha1.Outbox, outboxes []*v1alpha1.Outbox, peers []*v1alpha1.OutboxDispatcher) desired.Owner {
	if outbox != nil {
		return outbox
	}
	if !desired.Migrates(obd.Spec.Database) {
		return nil
	}
	if outbox := oldestOf(outboxes, obd.Spec.Database); outbox != nil {
		return outbox
	}
	for _, peer := range older(peers, obd) {
		if _, err := desired.NewMigration(peer, r.Platform); err == nil {
			return peer
		}
	}
	return nil
}

// migration runs the dispatcher's own migration Job, or watches the migrator's, and removes Jobs of its own.
func (r *Reconciler) migration(ctx context.Context, obd *v1alpha1.OutboxDispatcher, migrator desired.Owner) (migrate.Migration, error) {
	wanted, err := desired.NewMigration(obd, r.Platform)
	if err != nil {
		return migrate.Migration{}, podTemplateProblem(err)
	}
	switch migrator := migrator.(type) {
	case nil:
		return r.migrations.Run(ctx, obd, wanted)
	case *v1alpha1.Outbox:
		if wanted, err = desired.NewOutboxMigration(migrator, r.Platform); err != nil { // which is in the Outbox's status
			return migrate.Migration{State: migrate.Failed, Of: "Outbox " + migrator.Name, Detail: err.Error()}, nil
		}
	case *v1alpha1.OutboxDispatcher:
		if wanted, err = desired.NewMigration(migrator, r.Platform); err != nil {
			return migrate.Migration{}, podTemplateProblem(err)
		}
	}
	if _, err := r.migrations.Run(ctx, obd, nil); err != nil {
		return migrate.Migration{}, err
	}
	return r.migrations.Look(ctx, migrator, wanted)
}
