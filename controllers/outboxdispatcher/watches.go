package outboxdispatcher

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/claimants"
)

// usersOfOutbox finds the dispatchers that refer to an Outbox.
func (r *Reconciler) usersOfOutbox(ctx context.Context, outbox client.Object) []reconcile.Request {
	all, err := claimants.OfOutbox(ctx, r.Client, outbox.GetNamespace(), outbox.GetName())
	return requests(ctx, all, err)
}

// peersOf finds the dispatchers that claim from the same outbox.
func (r *Reconciler) peersOf(ctx context.Context, obd client.Object) []reconcile.Request {
	all, err := claimants.With(ctx, r.Client, obd.(*v1alpha1.OutboxDispatcher))
	return requests(ctx, all, err)
}

// concernsPeers reports whether a change of a dispatcher is one that its peers look at: of the events that it
// claims, or of its database. Of a thousand peers no other change wakes one.
func concernsPeers(e event.UpdateEvent) bool {
	looked := func(o client.Object) []any {
		spec := &o.(*v1alpha1.OutboxDispatcher).Spec
		return []any{o.GetDeletionTimestamp().IsZero(), claims(o.(*v1alpha1.OutboxDispatcher)), spec.Namespace, spec.Topics, spec.OutboxRef, spec.Database}
	}
	return !equality.Semantic.DeepEqual(looked(e.ObjectOld), looked(e.ObjectNew))
}

// waitingFor finds the dispatchers that wait for the migration Job of their Outbox.
func (r *Reconciler) waitingFor(ctx context.Context, job client.Object) []reconcile.Request {
	owner := metav1.GetControllerOf(job)
	if owner == nil || owner.Kind != "Outbox" {
		return nil
	}
	all, err := claimants.OfOutbox(ctx, r.Client, job.GetNamespace(), owner.Name)
	return requests(ctx, all, err)
}

// requests are those for the dispatchers.
func requests(ctx context.Context, all []v1alpha1.OutboxDispatcher, err error) []reconcile.Request {
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Find the OutboxDispatchers of the same outbox")
	}
	found := make([]reconcile.Request, 0, len(all))
	for i := range all {
		found = append(found, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&all[i])})
	}
	return found
}
