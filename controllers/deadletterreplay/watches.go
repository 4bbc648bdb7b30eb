package deadletterreplay

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/apply"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
)

// SetupWithManager starts the reconciler with the manager. It returns an error when a watch cannot be made.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.applied = apply.New(r.Client, r.Live, v1alpha1.CompleteCondition)
	r.applied.Inherited = r.Platform.Inherited
	edited := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	return ctrl.NewControllerManagedBy(mgr).
		Named("deadletterreplay").
		For(&v1alpha1.DeadLetterReplay{}, builder.WithPredicates(kstatus.Edited())).
		Watches(&batchv1.Job{}, handler.EnqueueRequestsFromMapFunc(labelled)).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(labelled)).
		Watches(&v1alpha1.OutboxDispatcher{}, handler.EnqueueRequestsFromMapFunc(r.unfinished), edited).
		Watches(&v1alpha1.Outbox{}, handler.EnqueueRequestsFromMapFunc(r.unfinished), edited).
		WatchesRawSource(source.Func(func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			r.Observer.Start(ctx, func(o types.NamespacedName) { q.Add(reconcile.Request{NamespacedName: o}) })
			return nil
		})).
		Complete(r)
}

// labelled is the replay that an object was made for.
func labelled(_ context.Context, o client.Object) []reconcile.Request {
	name := o.GetLabels()[desired.LabelReplay]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
}

// unfinished are the replays of a namespace that may wait for what has changed there.
func (r *Reconciler) unfinished(ctx context.Context, o client.Object) (found []reconcile.Request) {
	var all v1alpha1.DeadLetterReplayList
	if err := r.Client.List(ctx, &all, client.InNamespace(o.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "List the DeadLetterReplays")
	}
	for i := range all.Items {
		if !finished(&all.Items[i]) {
			found = append(found, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&all.Items[i])})
		}
	}
	return found
}
