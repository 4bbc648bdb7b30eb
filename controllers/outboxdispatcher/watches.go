package outboxdispatcher

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// usersOfOutbox finds the dispatchers that refer to an Outbox, and others that claim from its tables.
func (r *Reconciler) usersOfOutbox(ctx context.Context, outbox client.Object) []reconcile.Request {
	users, err := r.indexed(ctx, outbox.GetNamespace(), refKey(outbox.GetName()))
	claimants, _, err2 := r.claimantsOf(ctx, outbox.GetNamespace(), &outbox.(*v1alpha1.Outbox).Spec.OutboxSpec)
	return requests(ctx, append(users, claimants...), errors.Join(err, err2))
}

// peersOf finds the dispatchers that claim from the same tables.
func (r *Reconciler) peersOf(ctx context.Context, obd client.Object) []reconcile.Request {
	all, _, err := r.claimants(ctx, obd.(*v1alpha1.OutboxDispatcher))
	return requests(ctx, all, err)
}

// concernsPeers reports whether a change of a dispatcher is one that its peers look at: of the events that it
// claims, or of its database. Of a thousand peers no other change wakes one; a new migration Job does by itself.
func concernsPeers(e event.UpdateEvent) bool {
	looked := func(o client.Object) []any {
		spec := &o.(*v1alpha1.OutboxDispatcher).Spec
		return []any{o.GetDeletionTimestamp().IsZero(), claims(o.(*v1alpha1.OutboxDispatcher)), spec.Namespace, spec.Topics, spec.OutboxRef, spec.Database}
	}
	return !equality.Semantic.DeepEqual(looked(e.ObjectOld), looked(e.ObjectNew))
}

// waitingFor finds the dispatchers that look at a migration Job of another: of an Outbox, or of a peer.
func (r *Reconciler) waitingFor(ctx context.Context, job client.Object) []reconcile.Request {
	owner := metav1.GetControllerOf(job)
	if owner == nil {
		return nil
	}
	key := types.NamespacedName{Namespace: job.GetNamespace(), Name: owner.Name}
	if owner.Kind == "Outbox" {
		outbox := &v1alpha1.Outbox{}
		if err := r.Client.Get(ctx, key, outbox); err != nil {
			return nil // it is gone, and its users had a pass
		}
		return r.usersOfOutbox(ctx, outbox)
	}
	runs := &v1alpha1.OutboxDispatcher{}
	if err := r.Client.Get(ctx, key, runs); err != nil {
		return nil // it is gone, and peers had a pass
	}
	return r.peersOf(ctx, runs)
}

// requests are those for the dispatchers.
func requests(ctx context.Context, all []*v1alpha1.OutboxDispatcher, err error) []reconcile.Request {
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Find the OutboxDispatchers of the same outbox")
	}
	found := make([]reconcile.Request, 0, len(all))
	for _, obd := range all {
		found = append(found, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(obd)})
	}
	return found
}
