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

// resolveOutbox puts the spec of the Outbox that is referred to in the place of a database of the
// dispatcher's own, for this pass. Pods that run go on when there is none.
func (r *Reconciler) resolveOutbox(ctx context.Context, s *scope) error {
	ref := s.obd.Spec.OutboxRef
	if ref == nil {
		return nil
	}
	outbox := &v1alpha1.Outbox{}
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: s.obd.Namespace, Name: ref.Name}, outbox)
	if apierrors.IsNotFound(err) {
		return problem.Waiting(v1alpha1.ReferencesResolvedCondition, v1alpha1.ReasonOutboxNotFound, fmt.Sprintf(
			"Outbox %q, which spec.outboxRef names, does not exist in namespace %q; create it, and this goes on by itself.", ref.Name, s.obd.Namespace))
	}
	if err != nil {
		return fmt.Errorf("read Outbox %s: %w", ref.Name, err)
	}
	s.outbox = outbox
	s.obd.Spec.Database, s.before.Spec.Database = &outbox.Spec.OutboxSpec, &outbox.Spec.OutboxSpec
	return nil
}

// migration runs the dispatcher's own migration Job, or looks at that of who migrates the same database.
func (r *Reconciler) migration(ctx context.Context, s *scope) (migrate.Migration, error) {
	if s.outbox != nil {
		return r.lookAtOutbox(ctx, s, s.outbox)
	}
	own, err := desired.NewMigration(s.obd, r.Platform)
	if err != nil {
		return migrate.Migration{}, podTemplateProblem(err)
	}
	switch migrator := r.migrator(s).(type) {
	case *v1alpha1.Outbox:
		return r.lookAtOutbox(ctx, s, migrator)
	case *v1alpha1.OutboxDispatcher:
		wanted, err := desired.NewMigration(migrator, r.Platform)
		if err != nil {
			return migrate.Migration{}, podTemplateProblem(err)
		}
		return r.lookAt(ctx, s, migrator, wanted)
	}
	return r.migrations.Run(ctx, s.obd, own)
}

// migrator is who else runs the migration of the dispatcher's own database: the oldest Outbox that says the same of
// it, or the oldest dispatcher that does; nil for nobody.
func (r *Reconciler) migrator(s *scope) desired.Owner {
	if s.outbox != nil || !desired.Migrates(s.obd.Spec.Database) {
		return nil
	}
	if outbox := oldestOf(s.outboxes, s.obd.Spec.Database); outbox != nil {
		return outbox
	}
	for _, peer := range older(s.peers, s.obd) {
		if _, err := desired.NewMigration(peer, r.Platform); err == nil {
			return peer
		}
	}
	return nil
}

func (r *Reconciler) lookAtOutbox(ctx context.Context, s *scope, outbox *v1alpha1.Outbox) (migrate.Migration, error) {
	wanted, err := desired.NewOutboxMigration(outbox, r.Platform)
	if err != nil { // the Outbox tells it
		return migrate.Migration{State: migrate.Failed, Of: "Outbox " + outbox.Name, Detail: err.Error()}, nil
	}
	return r.lookAt(ctx, s, outbox, wanted)
}

// lookAt looks at the migration of another, and removes Jobs of the dispatcher's own.
func (r *Reconciler) lookAt(ctx context.Context, s *scope, owner desired.Owner, wanted *desired.Migration) (migrate.Migration, error) {
	if _, err := r.migrations.Run(ctx, s.obd, nil); err != nil {
		return migrate.Migration{}, err
	}
	return r.migrations.Look(ctx, owner, wanted)
}
