// Package outbox reconciles Outboxes: it runs the one migration Job of a database, and sums up what the
// OutboxDispatchers that refer to it report.
//
// The operator opens no connection to the database. What is known comes from the Job and from the status of
// the dispatchers, whose changes trigger a pass; so a pass polls no pod, and is repeated only
// while a migration is under way, and after a problem.
package outbox

import (
	"context"
	"errors"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/apply"
	"github.com/outbox-operator/outbox-operator/controllers/internal/claimants"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/fairqueue"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/migrate"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pace"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pods"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
	"github.com/outbox-operator/outbox-operator/controllers/internal/references"
)

// Reconciler migrates Outboxes and reports on them. All fields are required.
type Reconciler struct {
	// Reporter has the clients and the Events, and says which operator this is.
	*kstatus.Reporter
	// Mounts has the Events about files of pods.
	Mounts pods.FailedMounts
	// Platform is what all pods have in common.
	Platform desired.Platform
	// Pace grants turns to migrations that an upgrade of the operator brings.
	Pace *pace.Pacer
	// Interval is the time between two looks at a migration that is under way.
	Interval time.Duration

	applied    *apply.Applier
	migrations *migrate.Runner
}

// What the manager may do for Outboxes, in addition to its rights for OutboxDispatchers.
//
// +kubebuilder:rbac:groups=outbox.dev,resources=outboxes,verbs=get;list;watch
// +kubebuilder:rbac:groups=outbox.dev,resources=outboxes/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=events,verbs=list

// SetupWithManager starts the reconciler with the manager, which has the index of package claimants. It returns an error
// when a watch cannot be made.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.applied = apply.New(r.Client, r.Live, v1alpha1.SchemaReadyCondition)
	r.applied.Adopts, r.applied.Inherited = true, r.Platform.Inherited
	r.migrations = &migrate.Runner{Client: r.Client, Live: r.Live, Mounts: r.Mounts, Applied: r.applied}
	return ctrl.NewControllerManagedBy(mgr).
		Named("outbox").
		WithOptions(controller.Options{NewQueue: fairqueue.New}).
		For(&v1alpha1.Outbox{}, builder.WithPredicates(kstatus.Edited())).
		Owns(&batchv1.Job{}).
		Owns(&corev1.ConfigMap{}).
		Watches(&v1alpha1.OutboxDispatcher{}, handler.Funcs{
			CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { soon(q, e.Object) },
			UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) { soon(q, e.ObjectOld, e.ObjectNew) },
			DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { soon(q, e.Object) },
		}).
		Complete(r)
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// gather is how long changes of dispatchers are gathered before their Outbox is looked at.
const gather = 500 * time.Millisecond

// soon enqueues the Outboxes of dispatchers.
func soon(q queue, dispatchers ...client.Object) {
	for _, o := range dispatchers {
		if ref := o.(*v1alpha1.OutboxDispatcher).Spec.OutboxRef; ref != nil {
			q.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: ref.Name}}, gather)
		}
	}
}

// Reconcile does one pass. It returns an error when the API server does, or what a later pass may overcome.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, err error) {
	outbox := &v1alpha1.Outbox{}
	if err := r.Client.Get(ctx, req.NamespacedName, outbox); err != nil {
		if apierrors.IsNotFound(err) {
			r.applied.Forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !outbox.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil // owner references take the rest along
	}
	if held, again, err := r.Claim(ctx, outbox); !held {
		return ctrl.Result{RequeueAfter: again}, err
	}
	if kstatus.Disabled(outbox) {
		return ctrl.Result{}, r.Disable(ctx, outbox, &outbox.Status.Conditions, outbox.Status.ObservedGeneration)
	}
	before, o := outbox.DeepCopy(), observed{outbox: outbox}
	defer func() { err = errors.Join(err, r.report(ctx, before, o, err)) }()

	o.migration, o.queues, err = r.migrate(ctx, outbox)
	if err != nil && !errors.As(err, &o.problem) {
		return ctrl.Result{}, err
	}
	if o.queues {
		o.holders = r.Pace.Holders()
	}
	o.missing = references.Missing(r.Mounts, references.OfOutbox(outbox), o.migration.Pods)
	if o.dispatchers, err = claimants.OfOutbox(ctx, r.Client, outbox.Namespace, outbox.Name); err != nil {
		return ctrl.Result{}, err
	}
	result.RequeueAfter = r.again(o)
	return result, nil
}

// again is the time until the next pass for what cannot be watched, 0 for none.
func (r *Reconciler) again(o observed) time.Duration {
	switch {
	case o.migration.Open():
		return o.migration.Sooner(r.Interval)
	case o.queues || o.problem != nil: // such as a quota, or an object that has the name: neither is watched
		return r.Interval
	}
	return 0
}

// migrate runs the migration Job, and applies the files that it loads. It queues when nothing but an upgrade of the operator
// brings the migration: a few run at a time.
func (r *Reconciler) migrate(ctx context.Context, outbox *v1alpha1.Outbox) (_ migrate.Migration, queues bool, _ error) {
	if err := problem.Incomplete(v1alpha1.SchemaReadyCondition, "Outbox", "", outbox.Spec); err != nil {
		return migrate.Migration{}, false, err
	}
	wanted, err := desired.NewOutboxMigration(outbox, r.Platform)
	if errors.Is(err, desired.ErrPodTemplate) {
		return migrate.Migration{}, false, problem.Stalling(v1alpha1.SchemaReadyCondition, v1alpha1.ReasonInvalidPodTemplate, problem.Sentence(err.Error()))
	}
	if err != nil {
		return migrate.Migration{}, false, err
	}
	due, err := r.migrations.Due(ctx, outbox, wanted)
	if err != nil {
		return migrate.Migration{}, false, err
	}
	if !due {
		r.Pace.Done(outbox)
	} else if outbox.Status.ObservedGeneration == outbox.Generation {
		if may, err := r.Pace.May(ctx, outbox); err != nil || !may {
			return migrate.Migration{}, err == nil, err
		}
	}
	var needed []string
	if files := desired.OutboxConfigMap(outbox); files != nil {
		if err := r.applied.Apply(ctx, outbox, files, &corev1.ConfigMap{}); err != nil {
			return migrate.Migration{}, false, err
		}
		needed = append(needed, *files.Name)
	}
	made, err := r.migrations.Run(ctx, outbox, wanted)
	if err != nil {
		return made, false, err
	}
	return made, false, r.applied.Collect(ctx, outbox, desired.Selector(outbox, desired.ComponentMigration), needed...)
}

// report writes the status, if anything changed, and then records Events.
func (r *Reconciler) report(ctx context.Context, before *v1alpha1.Outbox, o observed, failure error) error {
	outbox := o.outbox
	var all []metav1.Condition
	if failure != nil {
		all = kstatus.SetFailure(&outbox.Status.Conditions, outbox.Generation, v1alpha1.ReadyCondition, failure)
	} else {
		all = setStatus(&outbox.Status, o)
	}
	return r.Report(ctx, before, outbox, func() []kstatus.Event { return kstatus.Transitions(watched, before.Status.Conditions, all) })
}
