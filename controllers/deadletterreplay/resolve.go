package deadletterreplay

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// resolve finds the outbox that the replay is about, and the login for it.
func (r *Reconciler) resolve(ctx context.Context, o *api.DeadLetterReplay) (desired.Replay, error) {
	found := desired.Replay{DeadLetterReplay: o}
	outbox := o.Spec.OutboxRef
	if ref := o.Spec.DispatcherRef; ref != nil {
		found.Dispatcher = &api.OutboxDispatcher{}
		switch err := r.Client.Get(ctx, types.NamespacedName{Namespace: o.Namespace, Name: ref.Name}, found.Dispatcher); {
		case apierrors.IsNotFound(err):
			return found, waiting(api.ReasonDispatcherNotFound,
				"OutboxDispatcher %q, which spec.dispatcherRef names, does not exist in namespace %q; create it, and the operator continues.", ref.Name, o.Namespace)
		case err != nil:
			return found, fmt.Errorf("read OutboxDispatcher %s: %w", ref.Name, err)
		}
		if topic := undelivered(o, found.Dispatcher); topic != "" {
			return found, problem.Stalling(api.ReferencesResolvedCondition, api.ReasonTopicNotDelivered, fmt.Sprintf(
				"OutboxDispatcher %q does not deliver topic %q, which spec.selector.topics names; delete this object, and create one with topics of that dispatcher, or with outboxRef.", ref.Name, topic))
		}
		if outbox = found.Dispatcher.Spec.OutboxRef; outbox == nil {
			return found, problem.Stalling(api.ReferencesResolvedCondition, api.ReasonReplayLoginMissing, fmt.Sprintf(
				"OutboxDispatcher %q has a database of its own, and only an Outbox has a login that may replay or discard; create an Outbox with spec.replayLogin for that database, set spec.outboxRef of the dispatcher to it, and create this object again.", ref.Name))
		}
	}
	found.Outbox = &api.Outbox{}
	switch err := r.Client.Get(ctx, types.NamespacedName{Namespace: o.Namespace, Name: outbox.Name}, found.Outbox); {
	case apierrors.IsNotFound(err):
		return found, waiting(api.ReasonOutboxNotFound, "Outbox %q does not exist in namespace %q; create it, and the operator continues.", outbox.Name, o.Namespace)
	case err != nil:
		return found, fmt.Errorf("read Outbox %s: %w", outbox.Name, err)
	}
	if found.Outbox.Spec.ReplayLogin == nil {
		return found, waiting(api.ReasonReplayLoginMissing,
			"Outbox %s: spec.replayLogin is not set, so there is no login that may replay or discard; make one with `dispatcher migrate grants --for replay`, and name its Secret there.", outbox.Name)
	}
	return found, nil
}

func waiting(reason, format string, args ...any) error {
	return problem.Waiting(api.ReferencesResolvedCondition, reason, fmt.Sprintf(format, args...))
}

// undelivered is a topic of the selector that the dispatcher does not deliver; empty for none.
func undelivered(o *api.DeadLetterReplay, d *api.OutboxDispatcher) string {
	for _, topic := range o.Spec.Selector.Topics {
		if len(d.Spec.Topics) > 0 && !slices.Contains(d.Spec.Topics, topic) {
			return topic
		}
	}
	return ""
}
