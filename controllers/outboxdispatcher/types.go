package outboxdispatcher

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
	"github.com/outbox-operator/outbox-operator/controllers/internal/registration"
)

// findConsumers lists the consumers that are registered in the namespace. They are the cache's own, and only read.
func (r *Reconciler) findConsumers(ctx context.Context, obd *api.OutboxDispatcher) (consumers []*api.OutboxConsumer, err error) {
	var found api.OutboxConsumerList
	if err := r.Client.List(ctx, &found, client.InNamespace(obd.Namespace), client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency); err != nil {
		return nil, fmt.Errorf("list the OutboxConsumers of namespace %s: %w", obd.Namespace, err)
	}
	for i := range found.Items {
		if found.Items[i].DeletionTimestamp.IsZero() {
			consumers = append(consumers, &found.Items[i])
		}
	}
	return consumers, nil
}

// concernsDispatchers reports whether a change of a consumer is one that dispatchers look at: of its spec, or of whether
// it is verified.
func concernsDispatchers(e event.UpdateEvent) bool {
	was, is := e.ObjectOld.(*api.OutboxConsumer), e.ObjectNew.(*api.OutboxConsumer)
	return was.Generation != is.Generation || registration.Verified(was) != registration.Verified(is)
}

// admit applies the list of event types with a verified consumer for the pods, when the spec requires one (CONTRACT C-82).
// A pod that cannot be annotated reads it within 90 seconds.
func (r *Reconciler) admit(ctx context.Context, obd *api.OutboxDispatcher, consumers []*api.OutboxConsumer, pods []corev1.Pod) error {
	if obd.Spec.Delivery.ConsumerPolicy != spec.ConsumersVerified {
		return nil
	}
	types := registration.VerifiedTypes(consumers, obd.Name, time.Now())
	if err := r.applied.Apply(ctx, obd, desired.ConsumersConfigMap(obd, types), &corev1.ConfigMap{}); err != nil {
		return err
	}
	_ = r.annotate(ctx, pods, desired.AnnotationConsumers, desired.Hash(types), "")
	return nil
}

// neighbours are the dispatchers of a consumer's namespace: the first registration there concerns each of them.
func (r *Reconciler) neighbours(ctx context.Context, consumer client.Object) []reconcile.Request {
	var found api.OutboxDispatcherList
	err := r.Client.List(ctx, &found, client.InNamespace(consumer.GetNamespace()), client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency)
	return requests(ctx, found.Items, err)
}

// typesKept is how long an event type is known of which no event comes.
const typesKept = 30 * 24 * time.Hour

// seenTypes adds the event types that pods report to the known ones, and forgets those of which no event has come for
// long. When there are too many, those that are known stay.
func seenTypes(known []status.EventType, statuses []status.Status, now time.Time) []status.EventType {
	seen := slices.Clone(known)
	for _, a := range statuses {
		for _, reported := range a.EventTypes {
			day := status.At(reported.LastSeen.Time().Truncate(24 * time.Hour))
			at := slices.IndexFunc(seen, func(t status.EventType) bool { return t.Type == reported.Type })
			switch {
			case at >= 0 && seen[at].LastSeen < day:
				seen[at].LastSeen = day
			case at < 0 && reported.Type != "" && len(seen) < status.EventTypesListed:
				seen = append(seen, status.EventType{Type: reported.Type, LastSeen: day})
			}
		}
	}
	seen = slices.DeleteFunc(seen, func(t status.EventType) bool { return now.Sub(t.LastSeen.Time()) > typesKept })
	slices.SortFunc(seen, func(a, b status.EventType) int { return cmp.Compare(a.Type, b.Type) })
	return seen
}

// typesUnregistered names the event types that no consumer of this dispatcher registers (CONTRACT C-82).
func typesUnregistered(o observed) metav1.Condition {
	const kind = api.TypesUnregisteredCondition
	var missing []string
	for _, seen := range o.types {
		if !slices.ContainsFunc(o.consumers, func(c *api.OutboxConsumer) bool {
			return registration.FedBy(c, o.obd.Name) && registration.Handles(c, seen.Type)
		}) {
			missing = append(missing, problem.Clip(strconv.Quote(seen.Type), topicBytes))
		}
	}
	switch {
	case len(o.consumers) == 0:
		return condition(kind, metav1.ConditionFalse, api.ReasonNotUsed, "No OutboxConsumer says who consumes what: there is none in this namespace.")
	case len(o.types) == 0:
		return condition(kind, metav1.ConditionUnknown, api.ReasonNotObserved, "No event was seen yet.")
	case len(missing) == 0:
		return condition(kind, metav1.ConditionFalse, api.ReasonTypesRegistered, "Each event type that was seen has an OutboxConsumer.")
	}
	which := strings.Join(missing[:min(len(missing), namedTopics)], ", ")
	if len(missing) > namedTopics {
		which += " and others"
	}
	return condition(kind, metav1.ConditionTrue, api.ReasonTypesUnregistered, fmt.Sprintf(
		"Events come of types that no OutboxConsumer registers: %s. Register who consumes them, with this dispatcher in dispatcherRefs or with none, or stop producing them.", which))
}
