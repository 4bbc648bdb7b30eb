package outboxconsumer

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/registration"
)

// idIndex finds consumers by their id, and feedIndex by a dispatcher that feeds them: by its name, or by all when they
// name none.
const (
	idIndex   = "status.consumerID"
	feedIndex = "spec.dispatcherRefs.name"
	all       = "*" // no name of an object
)

// SetupWithManager starts the reconciler with the manager. It returns an error when a watch or an index cannot be made.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	for name, keys := range map[string]func(*v1alpha1.OutboxConsumer) []string{
		idIndex: func(o *v1alpha1.OutboxConsumer) []string { return []string{registration.ID(o)} }, feedIndex: feedKeys,
	} {
		if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.OutboxConsumer{}, name, func(o client.Object) []string { return keys(o.(*v1alpha1.OutboxConsumer)) }); err != nil {
			return fmt.Errorf("index the OutboxConsumers by %s: %w", name, err)
		}
	}
	changed := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	return ctrl.NewControllerManagedBy(mgr).
		Named("outboxconsumer").
		For(&v1alpha1.OutboxConsumer{}, builder.WithPredicates(kstatus.Edited())).
		Watches(&v1alpha1.OutboxConsumer{}, handler.EnqueueRequestsFromMapFunc(r.withID), changed).
		Watches(&v1alpha1.OutboxDispatcher{}, handler.EnqueueRequestsFromMapFunc(r.fedBy), builder.WithPredicates(predicate.Funcs{UpdateFunc: concernsConsumers})).
		Watches(&v1alpha1.Outbox{}, handler.EnqueueRequestsFromMapFunc(r.neighbours), changed).
		Complete(r)
}

func feedKeys(o *v1alpha1.OutboxConsumer) (keys []string) {
	for _, ref := range o.Spec.DispatcherRefs {
		keys = append(keys, ref.Name)
	}
	if keys == nil {
		keys = []string{all}
	}
	return keys
}

// concernsConsumers reports whether a change of a dispatcher is one that consumers look at: of the types that it has
// seen, or of its Outbox. Counts, which change each minute, wake none.
func concernsConsumers(e event.UpdateEvent) bool {
	looked := func(o client.Object) []any {
		d := o.(*v1alpha1.OutboxDispatcher)
		return []any{d.DeletionTimestamp.IsZero(), d.Spec.OutboxRef, d.Status.EventTypes}
	}
	return !equality.Semantic.DeepEqual(looked(e.ObjectOld), looked(e.ObjectNew))
}

// withID finds the consumers with the id of one.
func (r *Reconciler) withID(ctx context.Context, o client.Object) []reconcile.Request {
	return r.list(ctx, o.GetNamespace(), client.MatchingFields{idIndex: registration.ID(o.(*v1alpha1.OutboxConsumer))})
}

// fedBy finds the consumers that a dispatcher feeds.
func (r *Reconciler) fedBy(ctx context.Context, d client.Object) []reconcile.Request {
	return append(r.list(ctx, d.GetNamespace(), client.MatchingFields{feedIndex: d.GetName()}),
		r.list(ctx, d.GetNamespace(), client.MatchingFields{feedIndex: all})...)
}

// neighbours are the consumers of the namespace of an Outbox, whose spec seldom changes.
func (r *Reconciler) neighbours(ctx context.Context, outbox client.Object) []reconcile.Request {
	return r.list(ctx, outbox.GetNamespace())
}

func (r *Reconciler) list(ctx context.Context, namespace string, which ...client.ListOption) (found []reconcile.Request) {
	var consumers v1alpha1.OutboxConsumerList
	if err := r.Client.List(ctx, &consumers, append(which, client.InNamespace(namespace), client.UnsafeDisableDeepCopy)...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "List the OutboxConsumers")
	}
	for i := range consumers.Items {
		found = append(found, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&consumers.Items[i])})
	}
	return found
}
