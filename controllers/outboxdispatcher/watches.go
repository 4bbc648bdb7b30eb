package outboxdispatcher

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// usersOfOutbox finds the dispatchers that refer to an Outbox.
func (r *Reconciler) usersOfOutbox(ctx context.Context, outbox client.Object) []reconcile.Request {
	return r.requests(ctx, outbox.GetNamespace(), "Outbox/"+outbox.GetName())
}

// peersOf finds the other dispatchers that claim from the same tables.
func (r *Reconciler) peersOf(ctx context.Context, obd client.Object) []reconcile.Request {
	return r.requests(ctx, obd.GetNamespace(), outboxKey(obd.(*v1alpha1.OutboxDispatcher)))
}

// concernsPeers reports whether a change of a dispatcher is one that its peers look at: of the events that it
// claims, or of its database. Of a thousand peers no other change wakes one; a new migration Job does by itself.
func concernsPeers(e event.UpdateEvent) bool {
	looked := func(o client.Object) []any {
		spec := &o.(*v1alpha1.OutboxDispatcher).Spec
		return []any{o.GetDeletionTimestamp().IsZero(), spec.Namespace, spec.Topics, spec.OutboxRef, spec.Database}
	}
	return !equality.Semantic.DeepEqual(looked(e.ObjectOld), looked(e.ObjectNew))
}

// waitingFor finds the dispatchers that look at a migration Job of another: of their Outbox, or of a peer.
func (r *Reconciler) waitingFor(ctx context.Context, job client.Object) []reconcile.Request {
	owner := metav1.GetControllerOf(job)
	switch {
	case owner == nil:
		return nil
	case owner.Kind == "Outbox":
		return r.requests(ctx, job.GetNamespace(), "Outbox/"+owner.Name)
	}
	runs := &v1alpha1.OutboxDispatcher{}
	if err := r.Client.Get(ctx, types.NamespacedName{Namespace: job.GetNamespace(), Name: owner.Name}, runs); err != nil {
		return nil // it is gone, and peers were told
	}
	return r.peersOf(ctx, runs)
}

// requests are those for the dispatchers of the key.
func (r *Reconciler) requests(ctx context.Context, namespace, key string) []reconcile.Request {
	var found v1alpha1.OutboxDispatcherList
	err := r.Client.List(ctx, &found, client.InNamespace(namespace), client.MatchingFields{outboxIndex: key}, client.UnsafeDisableDeepCopy)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "List the OutboxDispatchers of the same outbox", "key", key)
		return nil
	}
	requests := make([]reconcile.Request, 0, len(found.Items))
	for i := range found.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&found.Items[i])})
	}
	return requests
}
