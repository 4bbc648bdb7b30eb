package outboxdispatcher

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/claimants"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

// What the manager may do to find the pods of a Deployment: pods are owned by ReplicaSets.
//
// +kubebuilder:rbac:groups=apps,resources=replicasets,verbs=list;watch

// queue is what a source puts requests into.
type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// observation triggers a pass of an OutboxDispatcher after an observation, with a lower priority than one after an edit.
func observation(q queue, obd types.NamespacedName) {
	request := reconcile.Request{NamespacedName: obd}
	if p, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		p.AddWithOpts(priorityqueue.AddOpts{Priority: new(handler.LowPriority)}, request)
		return
	}
	q.Add(request)
}

// observedPods triggers a pass when a pod or a ReplicaSet of an OutboxDispatcher is made, changed or deleted, so
// that its pods are known as soon as the cache has them.
func observedPods() handler.EventHandler {
	enqueue := func(o client.Object, q queue) {
		if name := o.GetLabels()[desired.LabelDispatcher]; name != "" {
			observation(q, types.NamespacedName{Namespace: o.GetNamespace(), Name: name})
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { enqueue(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) { enqueue(e.ObjectNew, q) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { enqueue(e.Object, q) },
	}
}

// failedMounts triggers a pass for an Event about a dispatcher's pod.
func (r *Reconciler) failedMounts() source.Source {
	return source.Func(func(ctx context.Context, q queue) error {
		r.Mounts.Start(ctx, func(name types.NamespacedName) {
			pod := &corev1.Pod{}
			if err := r.Client.Get(ctx, name, pod); err != nil {
				return // it is none of ours, or gone
			}
			if name := pod.Labels[desired.LabelDispatcher]; name != "" {
				observation(q, types.NamespacedName{Namespace: pod.Namespace, Name: name})
			}
		})
		return nil
	})
}

// observations triggers a pass when the status of a pod has changed.
func (r *Reconciler) observations() source.Source {
	return source.Func(func(ctx context.Context, q queue) error {
		r.Observer.Start(ctx, func(obd types.NamespacedName) { observation(q, obd) })
		return nil
	})
}

// owned are the pods of the Deployment's ReplicaSets. Labels prove nothing: anybody can set them.
func (r *Reconciler) owned(ctx context.Context, deployment *appsv1.Deployment, pods []corev1.Pod) (ours []corev1.Pod, err error) {
	if deployment == nil {
		return nil, nil
	}
	owners := map[types.UID]bool{} // of ReplicaSets: whether the Deployment owns them
	for _, pod := range pods {
		ref := metav1.GetControllerOf(&pod)
		if ref == nil || ref.Kind != "ReplicaSet" {
			continue
		}
		if _, known := owners[ref.UID]; !known {
			set := &appsv1.ReplicaSet{}
			err := r.Client.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: ref.Name}, set)
			if client.IgnoreNotFound(err) != nil {
				return nil, fmt.Errorf("read ReplicaSet %s: %w", ref.Name, err)
			}
			owners[ref.UID] = !apierrors.IsNotFound(err) && set.UID == ref.UID && metav1.IsControlledBy(set, deployment)
		}
		if owners[ref.UID] {
			ours = append(ours, pod)
		}
	}
	return ours, nil
}

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
