package outboxdispatcher

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/apply"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/fairqueue"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// stateWorkers is how many objects have their replicas and their state applied at once.
const stateWorkers = 4

// setupState starts the controller that applies the replicas and the state of edited objects. It has workers of its own,
// which wait for no rendering and no migration: to stop always works (CONTRACT C-105). All else is the work of Reconcile,
// which applies the same, and reports it.
func (r *Reconciler) setupState(mgr ctrl.Manager) error {
	r.cache = mgr.GetCache()
	return ctrl.NewControllerManagedBy(mgr).
		Named("outboxdispatcher-state").
		WithOptions(controller.Options{
			MaxConcurrentReconciles: stateWorkers,
			NewQueue:                fairqueue.New,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](firstRetry, lastRetry),
		}).
		For(&v1alpha1.OutboxDispatcher{}, builder.WithPredicates(kstatus.Edited())).
		Owns(&appsv1.Deployment{}).
		Owns(&corev1.ConfigMap{}).
		Complete(reconcile.Func(r.reconcileState))
}

// reconcileState applies the replicas and the state of an object of this operator's.
func (r *Reconciler) reconcileState(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	obd := &v1alpha1.OutboxDispatcher{}
	if err := r.cache.Get(ctx, req.NamespacedName, obd); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	r.scalers.recall(obd)
	if !obd.DeletionTimestamp.IsZero() || obd.Status.Operator != r.Operator || kstatus.Disabled(obd) {
		return ctrl.Result{}, nil
	}
	if same, err := r.inForce(ctx, obd); same || err != nil {
		return ctrl.Result{}, err
	}
	deployment, pods, err := r.findWorkload(ctx, obd)
	if err != nil || deployment == nil {
		return ctrl.Result{}, err
	}
	_, state, err := r.stop(ctx, obd, deployment, pods)
	var user *problem.Problem
	var foreign *apply.Foreign
	switch {
	case errors.As(err, &user), errors.As(err, &foreign):
		return ctrl.Result{}, nil // Reconcile reports it
	case err != nil:
		return ctrl.Result{}, err
	case state.resumes:
		return ctrl.Result{RequeueAfter: r.ResumeWithin}, nil
	}
	return ctrl.Result{}, nil
}

// inForce reports whether the Deployment and the ConfigMap with the state are as the spec says, or there is no Deployment: there is
// nothing to do that Reconcile does not do. It waits for no write of the operator's, so that the workers are free for whoever stops;
// what a write changes is looked at again.
func (r *Reconciler) inForce(ctx context.Context, obd *v1alpha1.OutboxDispatcher) (bool, error) {
	deployment, applied := &appsv1.Deployment{}, &corev1.ConfigMap{}
	name := desired.Name(obd)
	if err := r.cache.Get(ctx, client.ObjectKey{Namespace: obd.Namespace, Name: name}, deployment); err != nil {
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, fmt.Errorf("read Deployment %s: %w", name, err)
	}
	name = *desired.StateConfigMap(obd).Name
	if err := r.cache.Get(ctx, client.ObjectKey{Namespace: obd.Namespace, Name: name}, applied); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read ConfigMap %s: %w", name, err)
	}
	return *deployment.Spec.Replicas == desired.Replicas(obd) && desired.State(applied) == obd.Spec.State, nil
}

// errEdited ends a pass over a spec that has been edited since the pass began: what it would apply is of an earlier one.
var errEdited = errors.New("the OutboxDispatcher was edited during the pass")

// unedited returns errEdited when the object has another generation than the one of the pass.
func (r *Reconciler) unedited(ctx context.Context, obd *v1alpha1.OutboxDispatcher) error {
	current := &v1alpha1.OutboxDispatcher{}
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(obd), current, client.UnsafeDisableDeepCopy); err != nil {
		return client.IgnoreNotFound(err)
	}
	if current.Generation != obd.Generation {
		return errEdited
	}
	return nil
}
