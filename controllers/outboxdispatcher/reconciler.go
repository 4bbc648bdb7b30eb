package outboxdispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/observe"
	"github.com/outbox-operator/outbox-operator/dispatcher/report"
)

// Reconciler turns OutboxDispatchers into workloads and reports what they see. All fields are
// required.
type Reconciler struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Live reads from the API server. Secrets are read with it, so that none is kept in memory, and
	// what is read seldom.
	Live client.Reader
	// ConfigMaps has the metadata of all ConfigMaps; Client's cache has only those of the operator.
	ConfigMaps cache.Cache
	// Events records events of events.k8s.io.
	Events events.EventRecorder
	// Pods asks dispatcher pods for their status.
	Pods *observe.Client
	// Image is the dispatchers' and the migration Job's.
	Image string
	// Interval is the time between two looks at the pods' numbers.
	Interval time.Duration

	applied *applier
	secrets *secretReader
	schemas *schemaReader
}

// concurrency is how many objects are reconciled at once; most of the time goes into waiting for pods.
const concurrency = 8

// What the manager may do. Secrets are watched by their metadata, and one is read only when it is
// named and has changed. Get is for objects that are not in the cache, because they may be foreign.
//
// +kubebuilder:rbac:groups=outbox.dev,resources=outboxdispatchers,verbs=list;watch
// +kubebuilder:rbac:groups=outbox.dev,resources=outboxdispatchers/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=configmaps;serviceaccounts,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=batch,resources=jobs,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get

// SetupWithManager starts the reconciler with the manager.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	r.applied = newApplier(r.Client, r.Live)
	r.secrets = newSecretReader(r.Client, r.Live)
	r.schemas = newSchemaReader(r.ConfigMaps, r.Live)
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.OutboxDispatcher{}, secretIndex, func(o client.Object) []string {
		return desired.SecretNames(o.(*v1alpha1.OutboxDispatcher))
	}); err != nil {
		return fmt.Errorf("index the OutboxDispatchers by Secret: %w", err)
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.OutboxDispatcher{}, configMapIndex, func(o client.Object) []string {
		return desired.ConfigMapNames(o.(*v1alpha1.OutboxDispatcher))
	}); err != nil {
		return fmt.Errorf("index the OutboxDispatchers by ConfigMap: %w", err)
	}
	configMap := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}}
	return ctrl.NewControllerManagedBy(mgr).
		Named("outboxdispatcher").
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency}).
		For(&v1alpha1.OutboxDispatcher{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&appsv1.Deployment{}).
		Owns(&batchv1.Job{}).
		Owns(&corev1.ConfigMap{}).
		Owns(&corev1.ServiceAccount{}).
		Owns(&policyv1.PodDisruptionBudget{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.usersOf(secretIndex))).
		WatchesRawSource(source.Kind[client.Object](r.ConfigMaps, configMap, handler.EnqueueRequestsFromMapFunc(r.usersOf(configMapIndex)))).
		Complete(r)
}

// OutboxDispatchers are found by the Secrets and the ConfigMaps that they name.
const (
	secretIndex    = "spec.secrets"
	configMapIndex = "spec.configMaps"
)

// usersOf finds those that name an object.
func (r *Reconciler) usersOf(index string) handler.MapFunc {
	return func(ctx context.Context, named client.Object) []reconcile.Request {
		var users v1alpha1.OutboxDispatcherList
		if err := r.Client.List(ctx, &users, client.InNamespace(named.GetNamespace()), client.MatchingFields{index: named.GetName()}); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "List the OutboxDispatchers that name an object", "index", index, "name", named.GetName())
			return nil
		}
		requests := make([]reconcile.Request, 0, len(users.Items))
		for i := range users.Items {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&users.Items[i])})
		}
		return requests
	}
}

// scope is what one pass knows.
type scope struct {
	obd        *v1alpha1.OutboxDispatcher
	before     *v1alpha1.OutboxDispatcher
	secrets    digests
	resolved   *v1alpha1.OutboxDispatcher // obd, with its schemas in the place of their ConfigMaps
	deployment *appsv1.Deployment         // nil when there is none of ours
	pods       []corev1.Pod
	migration  migration
	problem    *problem
	answers    []report.Status
}

// Reconcile does one pass.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, err error) {
	obd := &v1alpha1.OutboxDispatcher{}
	if err := r.Client.Get(ctx, req.NamespacedName, obd); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !obd.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil // owner references take the rest along
	}
	s := &scope{obd: obd, before: obd.DeepCopy()}
	defer func() { err = errors.Join(err, r.report(ctx, s, err)) }()

	for _, phase := range []func(context.Context, *scope) error{r.look, r.resolveRefs, r.config, r.migrate, r.workload} {
		err := phase(ctx, s)
		if errors.As(err, &s.problem) || errors.Is(err, errWait) {
			break
		}
		if err != nil {
			return ctrl.Result{}, err
		}
	}
	s.answers = r.Pods.All(ctx, desired.DispatcherName(obd), observe.Running(s.pods))
	return ctrl.Result{RequeueAfter: s.migration.sooner(r.Interval)}, nil
}

// report writes the status, if anything changed, and then tells of it.
func (r *Reconciler) report(ctx context.Context, s *scope, failure error) error {
	if failure != nil {
		setFailure(&s.obd.Status, s.obd.Generation, failure)
	} else {
		setStatus(&s.obd.Status, observed{
			obd:        s.obd,
			problem:    s.problem,
			migration:  s.migration,
			deployment: s.deployment,
			pods:       s.pods,
			answers:    s.answers,
		})
	}
	if equal(s.before.Status, s.obd.Status) {
		return nil
	}
	if err := r.Client.Status().Patch(ctx, s.obd, client.MergeFrom(s.before)); err != nil {
		return client.IgnoreNotFound(err)
	}
	events := transitions(s.before.Status, s.obd.Status)
	if len(events) == 0 || r.leaving(ctx, s.obd.Namespace) {
		return nil
	}
	for _, e := range events {
		r.Events.Eventf(s.obd, nil, e.kind, e.reason, e.action, "%s", e.note)
	}
	return nil
}

// leaving reports whether a namespace is being deleted. It takes no more events, and there is nothing
// to tell: its objects vanish one by one, and this one is about to. Namespaces are read only when
// there is something to tell, and watched by nobody.
func (r *Reconciler) leaving(ctx context.Context, name string) bool {
	namespace := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
	if err := r.Live.Get(ctx, types.NamespacedName{Name: name}, namespace); err != nil {
		return apierrors.IsNotFound(err) // else try to tell
	}
	return !namespace.DeletionTimestamp.IsZero()
}

func (r *Reconciler) forget(obd types.NamespacedName) {
	r.applied.forget(obd)
	r.secrets.forget(obd)
	r.schemas.forget(obd)
}
