// Package outboxconsumer reconciles OutboxConsumers (CONTRACT C-82): it compares what is registered of a consumer with
// the dispatchers that feed it, and with the evidence that a pipeline has registered. It makes no object, polls
// no pod, and writes nothing but the status: what dispatchers have sent is in their own status.
package outboxconsumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/fairqueue"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
	"github.com/outbox-operator/outbox-operator/controllers/internal/registration"
)

// Reconciler reports on OutboxConsumers. All fields are required.
type Reconciler struct {
	// Reporter has the clients and the Events, and says which operator this is.
	*kstatus.Reporter
}

// What the manager may do for OutboxConsumers, in addition to its rights for the other kinds.
//
// +kubebuilder:rbac:groups=outbox.dev,resources=outboxconsumers,verbs=list;watch
// +kubebuilder:rbac:groups=outbox.dev,resources=outboxconsumers/status,verbs=patch

// Reconcile does one pass, and another one when the evidence begins to count, or gets too old. It returns an error when the
// API server does, or what a later pass may overcome.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, err error) {
	o := &v1alpha1.OutboxConsumer{}
	if err := r.Client.Get(ctx, req.NamespacedName, o); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !o.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	if held, again, err := r.Claim(ctx, o); !held {
		return ctrl.Result{RequeueAfter: again}, err
	}
	if kstatus.Disabled(o) {
		return ctrl.Result{}, r.Disable(ctx, o, &o.Status.Conditions, o.Status.ObservedGeneration)
	}
	before, seen := o.DeepCopy(), observed{consumer: o, now: time.Now()}
	defer func() { err = errors.Join(err, r.report(ctx, before, seen, err)) }()
	if err := problem.Incomplete(v1alpha1.ReferencesResolvedCondition, "OutboxConsumer", "", o.Spec); errors.As(err, &seen.missing) {
		return ctrl.Result{}, nil
	}
	if seen.taken, err = r.sameID(ctx, o); err != nil {
		return ctrl.Result{}, err
	}
	if seen.feeds, err = r.feeds(ctx, o); err != nil && !errors.As(err, &seen.missing) {
		return ctrl.Result{}, err
	}
	if o.Spec.Evidence != nil {
		next := registration.Expires(o)
		if begins := registration.Begins(o); seen.now.Before(begins) {
			next = begins
		}
		result.RequeueAfter = max(0, next.Sub(seen.now)) // 0 means: not
	}
	return result, nil
}

// sameID is the name of an older object with the same id, empty for none.
func (r *Reconciler) sameID(ctx context.Context, o *v1alpha1.OutboxConsumer) (older string, err error) {
	var all v1alpha1.OutboxConsumerList
	err = r.Client.List(ctx, &all, client.InNamespace(o.Namespace), client.MatchingFields{idIndex: registration.ID(o)}, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency)
	if err != nil {
		return "", fmt.Errorf("list the OutboxConsumers with the id %s: %w", registration.ID(o), err)
	}
	oldest := o
	for i := range all.Items {
		if other := &all.Items[i]; other.DeletionTimestamp.IsZero() && byAge(other, oldest) < 0 {
			oldest, older = other, other.Name
		}
	}
	return older, nil
}

// byAge compares two objects: the older one is first, and of two that are as old the one whose name is.
func byAge(a, b *v1alpha1.OutboxConsumer) int {
	if at := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); at != 0 {
		return at
	}
	return strings.Compare(a.Name, b.Name)
}

// feed is a dispatcher that feeds the consumer, and how long its events are kept, nil when that is not known. They are the
// cache's own, and only read.
type feed struct {
	dispatcher *v1alpha1.OutboxDispatcher
	retention  *spec.Retention
}

// feeds are the dispatchers that feed the consumer, by name, as far as they are there. The error is a problem when one,
// or an Outbox, is not.
func (r *Reconciler) feeds(ctx context.Context, o *v1alpha1.OutboxConsumer) (found []feed, missing error) {
	var all v1alpha1.OutboxDispatcherList
	if err := r.Client.List(ctx, &all, client.InNamespace(o.Namespace), client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency); err != nil {
		return nil, fmt.Errorf("list the OutboxDispatchers of namespace %s: %w", o.Namespace, err)
	}
	for i := range all.Items {
		d := &all.Items[i]
		if !d.DeletionTimestamp.IsZero() || !registration.FedBy(o, d.Name) {
			continue
		}
		next := feed{d, &spec.Retention{}}
		if ref := d.Spec.OutboxRef; ref != nil {
			outbox := &v1alpha1.Outbox{}
			next.retention = nil
			switch err := r.Client.Get(ctx, types.NamespacedName{Namespace: o.Namespace, Name: ref.Name}, outbox); {
			case apierrors.IsNotFound(err):
				missing = waiting(v1alpha1.ReasonOutboxNotFound, "Outbox %q, which OutboxDispatcher %q refers to, does not exist in namespace %q; create it, and the operator continues.", ref.Name, d.Name, o.Namespace)
			case err != nil:
				return nil, fmt.Errorf("read Outbox %s: %w", ref.Name, err)
			default:
				next.retention = &outbox.Spec.Retention
			}
		}
		found = append(found, next)
	}
	slices.SortFunc(found, func(a, b feed) int { return strings.Compare(a.dispatcher.Name, b.dispatcher.Name) })
	for _, ref := range o.Spec.DispatcherRefs {
		if !slices.ContainsFunc(found, func(f feed) bool { return f.dispatcher.Name == ref.Name }) {
			return found, waiting(v1alpha1.ReasonDispatcherNotFound, "OutboxDispatcher %q, which spec.dispatcherRefs names, does not exist in namespace %q; create it, or correct the name.", ref.Name, o.Namespace)
		}
	}
	if len(found) == 0 {
		return nil, waiting(v1alpha1.ReasonDispatcherNotFound, "Namespace %q has no OutboxDispatcher that could feed it; register the consumer in the namespace of its dispatchers, or create one there.", o.Namespace)
	}
	return found, missing
}

func waiting(reason, format string, args ...any) error {
	return problem.Waiting(v1alpha1.ReferencesResolvedCondition, reason, fmt.Sprintf(format, args...))
}

// report writes the status, if anything changed, and then records Events.
func (r *Reconciler) report(ctx context.Context, before *v1alpha1.OutboxConsumer, seen observed, failure error) error {
	o := seen.consumer
	if failure != nil {
		kstatus.SetFailure(&o.Status.Conditions, o.Generation, v1alpha1.ReadyCondition, failure)
	} else {
		setStatus(&o.Status, seen)
	}
	return r.Report(ctx, before, o, func() []kstatus.Event {
		return kstatus.Transitions(watched, before.Status.Conditions, o.Status.Conditions)
	})
}

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
		WithOptions(controller.Options{NewQueue: fairqueue.New}).
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
	if err := r.Client.List(ctx, &consumers, append(which, client.InNamespace(namespace), client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency)...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "List the OutboxConsumers")
	}
	for i := range consumers.Items {
		found = append(found, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&consumers.Items[i])})
	}
	return found
}
