package outboxdispatcher

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/apply"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/fairqueue"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/migrate"
	"github.com/outbox-operator/outbox-operator/controllers/internal/observe"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pace"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pods"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
	"github.com/outbox-operator/outbox-operator/controllers/internal/references"
)

// Reconciler turns OutboxDispatchers into workloads and reports what they see. All fields but
// Operator and OperatorNamespace are required.
type Reconciler struct {
	// Reporter has the clients and the Events, and says which operator this is.
	*kstatus.Reporter
	// Mounts watches the Events about files of pods.
	Mounts *pods.Mounts
	// Observer keeps what the dispatcher pods say.
	Observer *observe.Observer
	// Platform is what all pods have in common.
	Platform desired.Platform
	// Pace grants turns to what an upgrade of the operator changes.
	Pace *pace.Pacer
	// Now is the clock of decisions about the number of pods.
	Now func() time.Time
	// ResumeWithin bounds how long paused pods wait for a rollout when the spec says Running.
	ResumeWithin time.Duration
	// Interval is the time between two passes during a change or a problem, of which not all can be watched.
	Interval time.Duration
	// OperatorNamespace is where the operator's pods run, which a NetworkPolicy lets in. Empty means that no
	// NetworkPolicy is made.
	OperatorNamespace string

	cache      client.Reader // reads what is there, and waits for no write
	applied    *apply.Applier
	migrations *migrate.Runner
	warned     warned
	scalers    scalers
	// resuming is since when dispatchers wait for their rollout to resume, by types.NamespacedName.
	resuming sync.Map
}

// concurrency is how many objects are reconciled at once; most of the time goes into waiting for the API
// server.
const concurrency = 8

// A pass that failed comes again after these, which double.
const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = time.Minute
)

// lookAgain is the time between two passes when all is in place: the status says by its observedTime that
// the operator is alive.
const lookAgain = 2 * time.Minute

// What the manager may do. It has no right on Secrets (CONTRACT C-103): the kubelet and the pods report what is wrong
// with one. Get is for objects that are not in the cache, because they may be foreign. Pods are patched so that they read
// another state at once. The Events about files of a pod that cannot be mounted are watched; those of a Job, and
// ReplicaSets, are listed when needed.
//
// +kubebuilder:rbac:groups=outbox.dev,resources=outboxdispatchers,verbs=get;list;watch
// +kubebuilder:rbac:groups=outbox.dev,resources=outboxdispatchers/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch;patch
// +kubebuilder:rbac:groups="",resources=events,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=serviceaccounts,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=apps,resources=replicasets,verbs=list
// +kubebuilder:rbac:groups=batch,resources=jobs,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get

// SetupWithManager starts the reconciler with the manager, which has the index of package claimants. It returns an error
// when a watch cannot be made.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.applied = apply.New(r.Client, r.Live, v1alpha1.WorkloadAvailableCondition)
	r.applied.Adopts, r.applied.Inherited = true, r.Platform.Inherited
	r.migrations = &migrate.Runner{Client: r.Client, Live: r.Live, Mounts: r.Mounts, Applied: r.applied}
	if err := r.setupState(mgr); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("outboxdispatcher").
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrency,
			NewQueue:                fairqueue.New,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](firstRetry, lastRetry),
		}).
		For(&v1alpha1.OutboxDispatcher{}, builder.WithPredicates(kstatus.Edited())).
		Owns(&appsv1.Deployment{}).
		Owns(&batchv1.Job{}).
		Owns(&corev1.ConfigMap{}).
		Owns(&corev1.ServiceAccount{}).
		Owns(&policyv1.PodDisruptionBudget{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&networkingv1.NetworkPolicy{}).
		Watches(&corev1.Pod{}, observedPods()).
		WatchesRawSource(r.failedMounts()).
		Watches(&appsv1.ReplicaSet{}, observedPods()).
		WatchesRawSource(r.observations()).
		Watches(&v1alpha1.Outbox{}, handler.EnqueueRequestsFromMapFunc(r.usersOfOutbox), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.OutboxDispatcher{}, handler.EnqueueRequestsFromMapFunc(r.peersOf), builder.WithPredicates(predicate.Funcs{UpdateFunc: concernsPeers})).
		Watches(&v1alpha1.OutboxConsumer{}, handler.EnqueueRequestsFromMapFunc(r.neighbours), builder.WithPredicates(predicate.Funcs{UpdateFunc: concernsDispatchers})).
		Watches(&batchv1.Job{}, handler.EnqueueRequestsFromMapFunc(r.waitingFor)).
		Complete(r)
}

// Reconcile does one pass. It returns an error when the API server does, or what a later pass may overcome.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	obd := &v1alpha1.OutboxDispatcher{}
	if err := r.Client.Get(ctx, req.NamespacedName, obd); err != nil {
		if apierrors.IsNotFound(err) {
			r.applied.Forget(req.NamespacedName)
			r.warned.forget(req.NamespacedName)
			r.scalers.forget(req.NamespacedName)
			r.resuming.Delete(req.NamespacedName)
			r.Observer.Forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !obd.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil // owner references take the rest along
	}
	if held, again, err := r.Claim(ctx, obd); !held {
		return ctrl.Result{RequeueAfter: again}, err
	}
	before := obd.DeepCopy()
	o, err := r.pass(ctx, obd)
	if errors.Is(err, errEdited) {
		return ctrl.Result{}, nil // the edit has triggered another pass
	}
	var result ctrl.Result
	if err == nil {
		again := r.Interval
		if !underWay(o) && !slices.ContainsFunc(o.pods, pending) && !followsCounts(o) {
			again = max(again, lookAgain)
		}
		result = ctrl.Result{RequeueAfter: o.migration.Sooner(again), Priority: new(handler.LowPriority)}
	}
	return result, errors.Join(err, r.report(ctx, before, o, err))
}

// pass applies the spec, and returns what it has observed. A problem of the user's and a migration that runs end the
// phases and are part of the observation; any other error is a failure.
func (r *Reconciler) pass(ctx context.Context, obd *v1alpha1.OutboxDispatcher) (observed, error) {
	o := observed{obd: obd}
	err := r.phases(ctx, obd, &o)
	if foreign := (*apply.Foreign)(nil); errors.As(err, &foreign) {
		err = r.applied.All(ctx, obd, foreign, r.named(obd)...)
	}
	if err != nil && !errors.As(err, &o.problem) && !errors.Is(err, errWait) {
		return o, err
	}
	if o.queues {
		o.holders = r.Pace.Holders()
	}
	refs := references.Of(obd, o.outbox)
	o.now = time.Now()
	o.missing = references.Missing(r.Mounts, refs, slices.Concat(o.pods, o.migration.Pods))
	o.gone = references.Gone(r.Mounts, refs, o.pods, o.now)
	if o.problem == nil {
		o.problem = refusal(o.deployment, o.pods, o.now)
	}
	return o, nil
}

// phases runs the phases of a pass up to the first error, and keeps in o what the status follows from.
func (r *Reconciler) phases(ctx context.Context, obd *v1alpha1.OutboxDispatcher, o *observed) (err error) {
	if o.deployment, o.pods, err = r.findWorkload(ctx, obd); err != nil {
		return err
	}
	heard := r.Observer.Observe(client.ObjectKeyFromObject(obd), desired.DispatcherName(obd), o.pods)
	o.statuses, o.silent, o.unpolled, o.sets = heard.Statuses, heard.Silent, heard.Unpolled, setsOf(o.pods, heard.Pods)
	r.follow(ctx, obd, o)
	disabled := kstatus.Disabled(obd)
	if !disabled {
		if o.deployment, o.state, err = r.stop(ctx, obd, o.deployment, o.pods); err != nil {
			return err
		}
	}
	if err := problem.Incomplete(v1alpha1.WorkloadAvailableCondition, "OutboxDispatcher", "", obd.Spec); err != nil {
		return err
	}
	if o.peers, err = r.findPeers(ctx, obd); err != nil {
		return err
	}
	if o.consumers, err = r.findConsumers(ctx, obd); err != nil {
		return err
	}
	if !disabled {
		if err := r.admit(ctx, obd, o.consumers, o.pods); err != nil {
			return err
		}
	}
	if o.outbox, err = r.resolveOutbox(ctx, obd); err != nil || disabled {
		return err
	}
	if sentence := desired.SpecTooLarge(obd); sentence != "" {
		return problem.Stalling(v1alpha1.WorkloadAvailableCondition, v1alpha1.ReasonInvalidConfiguration, sentence)
	}
	files, err := r.applyFiles(ctx, obd, o.outbox)
	if err != nil {
		return err
	}
	if err := r.network(ctx, obd); err != nil {
		return err
	}
	wanted, err := r.wantedDeployment(ctx, obd, o.outbox, files[0], o.deployment)
	if err != nil {
		return err
	}
	if o.outbox == nil {
		if o.queues, err = r.queueToMigrate(ctx, obd, o.deployment, wanted); err != nil || o.queues {
			return err
		}
	}
	if o.migration, err = r.migrate(ctx, obd, o.outbox, o.deployment, wanted); err != nil {
		return err
	}
	if o.queues, err = r.queue(ctx, obd, o.deployment, wanted, false); err != nil {
		return err
	}
	if o.queues { // and the pods run the newest spec, as it was rendered before
		o.state, err = r.resume(ctx, obd, o.state, o.deployment, o.pods)
		return err
	}
	if err := r.unedited(ctx, obd); err != nil {
		return err
	}
	if o.deployment, err = r.workload(ctx, obd, o.deployment, wanted); err != nil {
		return err
	}
	if o.state, err = r.resume(ctx, obd, o.state, o.deployment, o.pods); err != nil {
		return err
	}
	files = append(files, *desired.StateConfigMap(obd).Name)
	if obd.Spec.Delivery.ConsumerPolicy == spec.ConsumersVerified || !complete(o.deployment, obd) { // pods of the earlier template may read it
		files = append(files, desired.ConsumersName(obd))
	}
	return r.applied.Collect(ctx, obd, map[string]string{desired.LabelDispatcher: obd.Name}, append(files, desired.ConfigNames(&o.deployment.Spec.Template.Spec)...)...)
}

// followsCounts reports whether the number of pods depends on the next counts.
func followsCounts(o observed) bool {
	b := o.backlog()
	spec, now := o.obd.Spec.Pods.Scaling, o.obd.Status.Scaling
	return spec != nil && (b != nil && b.Pending > 0 || now != nil && now.Recommended > spec.Min)
}

func pending(pod corev1.Pod) bool { return pod.Status.Phase == corev1.PodPending }

// errWait stops a pass until the migration has ended.
var errWait = errors.New("waiting for the migration")

// report writes the status, if anything changed, and then records Events.
func (r *Reconciler) report(ctx context.Context, before *v1alpha1.OutboxDispatcher, o observed, failure error) error {
	var all []metav1.Condition
	switch {
	case failure != nil:
		all = kstatus.SetFailure(&o.obd.Status.Conditions, o.obd.Generation, v1alpha1.ReadyCondition, failure)
	case o.unpolled > 0:
		return nil // less is known of the pods than before; the next pass, in seconds, knows more
	default:
		all = setStatus(&o.obd.Status, o)
	}
	return r.Report(ctx, before, o.obd, func() []kstatus.Event {
		return r.warned.seldom(client.ObjectKeyFromObject(o.obd), transitions(before.Status, o.obd.Status, all), time.Now())
	})
}

// setsOf are the ReplicaSets of those pods.
func setsOf(all []corev1.Pod, pods []types.UID) (sets []types.UID) {
	of := map[types.UID]types.UID{}
	for i := range all {
		if owner := metav1.GetControllerOf(&all[i]); owner != nil {
			of[all[i].UID] = owner.UID
		}
	}
	for _, pod := range pods {
		sets = append(sets, of[pod])
	}
	return sets
}
