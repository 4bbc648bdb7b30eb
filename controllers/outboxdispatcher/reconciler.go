package outboxdispatcher

import (
	"context"
	"errors"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/apply"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/migrate"
	"github.com/outbox-operator/outbox-operator/controllers/internal/observe"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
	"github.com/outbox-operator/outbox-operator/controllers/internal/references"
)

// Reconciler turns OutboxDispatchers into workloads and reports what they see. All fields but
// OperatorNamespace are required.
type Reconciler struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Live reads from the API server what is read seldom, and so in no cache.
	Live client.Reader
	// Events records events of events.k8s.io.
	Events events.EventRecorder
	// Observer keeps what the dispatcher pods say.
	Observer *observe.Observer
	// Platform is what all pods have in common.
	Platform desired.Platform
	// MaxRollingUpgrades is how many dispatchers take the operator's new image at a time.
	MaxRollingUpgrades int
	// Interval is the time between two passes while something is under way, or in the way, that nobody can
	// watch.
	Interval time.Duration
	// OperatorNamespace is where the operator's pods run, which a NetworkPolicy lets in. Empty means that no
	// NetworkPolicy is made.
	OperatorNamespace string

	applied    *apply.Applier
	migrations *migrate.Runner
	reporter   *kstatus.Reporter
	warned     warned
	pace       *pacer
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

// What the manager may do. Of Secrets nothing (CONTRACT C-103): the kubelet and the pods tell what is wrong
// with one. Get is for objects that are not in the cache, because they may be foreign. Pods are patched to
// tell them of another state at once. Of Events those are watched that say which files of a pod cannot be mounted,
// and those of a Job are listed when there is a question, as ReplicaSets are.
//
// +kubebuilder:rbac:groups=outbox.dev,resources=outboxdispatchers,verbs=list;watch
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

// SetupWithManager starts the reconciler with the manager.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	r.applied = apply.New(r.Client, r.Live, v1alpha1.WorkloadAvailableCondition)
	r.pace = &pacer{client: r.Client, image: r.Platform.Image, most: r.MaxRollingUpgrades}
	r.migrations = &migrate.Runner{Client: r.Client, Live: r.Live, Applied: r.applied}
	r.reporter = &kstatus.Reporter{Client: r.Client, Live: r.Live, Events: r.Events}
	if err := indexOutboxes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("outboxdispatcher").
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrency,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](firstRetry, lastRetry),
		}).
		For(&v1alpha1.OutboxDispatcher{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&appsv1.Deployment{}).
		Owns(&batchv1.Job{}).
		Owns(&corev1.ConfigMap{}).
		Owns(&corev1.ServiceAccount{}).
		Owns(&policyv1.PodDisruptionBudget{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&networkingv1.NetworkPolicy{}).
		Watches(&corev1.Pod{}, observedPods()).
		Watches(&corev1.Event{}, r.aboutPods()).
		WatchesMetadata(&appsv1.ReplicaSet{}, observedPods()).
		WatchesRawSource(r.heardNews()).
		Watches(&v1alpha1.Outbox{}, handler.EnqueueRequestsFromMapFunc(r.usersOfOutbox), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.OutboxDispatcher{}, handler.EnqueueRequestsFromMapFunc(r.peersOf), builder.WithPredicates(predicate.Funcs{UpdateFunc: concernsPeers})).
		Watches(&v1alpha1.OutboxConsumer{}, handler.EnqueueRequestsFromMapFunc(r.neighbours), builder.WithPredicates(predicate.Funcs{UpdateFunc: concernsDispatchers})).
		Watches(&batchv1.Job{}, handler.EnqueueRequestsFromMapFunc(r.waitingFor)).
		Complete(r)
}

// scope is what one pass knows.
type scope struct {
	obd        *v1alpha1.OutboxDispatcher
	before     *v1alpha1.OutboxDispatcher
	deployment *appsv1.Deployment           // nil when there is none of ours
	pods       []corev1.Pod                 // of the Deployment
	outbox     *v1alpha1.Outbox             // that spec.outboxRef names, nil for a database of its own
	peers      []*v1alpha1.OutboxDispatcher // others that claim from the same tables, by name
	outboxes   []*v1alpha1.Outbox           // that have these tables
	consumers  []*v1alpha1.OutboxConsumer   // that are registered in the namespace
	migration  migrate.Migration
	state      stateOfPods
	queues     bool             // it waits for others to take the operator's new image
	files      []string         // names of the ConfigMaps that new pods read
	missing    *problem.Problem // a reference that leads nowhere, for pods that start; nil for none
	gone       *problem.Problem // one that led somewhere when the pods started; nil for none
	problem    *problem.Problem
	heard      observe.Heard
}

// Reconcile does one pass.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, err error) {
	obd := &v1alpha1.OutboxDispatcher{}
	if err := r.Client.Get(ctx, req.NamespacedName, obd); err != nil {
		if apierrors.IsNotFound(err) {
			r.applied.Forget(req.NamespacedName)
			r.warned.forget(req.NamespacedName)
			r.Observer.Forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !obd.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil // owner references take the rest along
	}
	s := &scope{obd: obd, before: obd.DeepCopy()}
	defer func() { err = errors.Join(err, r.report(ctx, s, err)) }()

	for _, phase := range []func(context.Context, *scope) error{r.look, r.stop, r.findPeers, r.findConsumers, r.admit, r.resolveOutbox, r.config, r.network, r.migrate, r.workload, r.resume, r.collect} {
		err := phase(ctx, s)
		if errors.As(err, &s.problem) || errors.Is(err, errWait) {
			break
		}
		if err != nil {
			return ctrl.Result{}, err
		}
	}
	refs := references.Of(s.obd)
	if s.missing, err = references.Missing(ctx, r.Client, refs, slices.Concat(s.pods, s.migration.Pods)); err != nil {
		return ctrl.Result{}, err
	}
	if s.gone, err = references.Gone(ctx, r.Client, refs, s.pods, time.Now()); err != nil {
		return ctrl.Result{}, err
	}
	if s.problem == nil {
		s.problem = refusal(s.deployment, s.pods, time.Now())
	}
	again := r.Interval
	if !underWay(s.observed()) && !slices.ContainsFunc(s.pods, pending) {
		again = max(again, lookAgain)
	}
	return ctrl.Result{RequeueAfter: s.migration.Sooner(again), Priority: new(handler.LowPriority)}, nil
}

func pending(pod corev1.Pod) bool { return pod.Status.Phase == corev1.PodPending }

// errWait stops a pass until the migration has ended.
var errWait = errors.New("waiting for the migration")

// report writes the status, if anything changed, and then tells of it.
func (r *Reconciler) report(ctx context.Context, s *scope, failure error) error {
	switch {
	case failure != nil:
		kstatus.SetFailure(&s.obd.Status.Conditions, s.obd.Generation, failure)
	case s.heard.Unasked > 0:
		return nil // less is known of the pods than was: the next pass knows, in seconds
	default:
		setStatus(&s.obd.Status, s.observed())
	}
	return r.reporter.Report(ctx, s.before, s.obd, func() []kstatus.Event {
		return r.warned.seldom(client.ObjectKeyFromObject(s.obd), transitions(s.before.Status, s.obd.Status), time.Now())
	})
}

// observed is what the status follows from.
func (s *scope) observed() observed {
	return observed{
		obd:        s.obd,
		problem:    s.problem,
		missing:    s.missing,
		gone:       s.gone,
		state:      s.state,
		migration:  s.migration,
		deployment: s.deployment,
		pods:       s.pods,
		answers:    s.heard.Answers,
		silent:     s.heard.Silent,
		sets:       setsOf(s.pods, s.heard.Pods),
		queues:     s.queues,
		sharing:    sharing(s.obd, s.peers, s.heard.Answers),
		consumers:  s.consumers,
		now:        time.Now(),
	}
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
