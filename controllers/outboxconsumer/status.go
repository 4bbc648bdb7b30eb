package outboxconsumer

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
	"github.com/outbox-operator/outbox-operator/controllers/internal/registration"
)

// observed is what one pass has seen. The status follows from it and from nothing else.
type observed struct {
	consumer *api.OutboxConsumer
	now      time.Time
	// taken is the name of an older object with the same id, empty for none.
	taken string
	// feeds are the dispatchers that feed the consumer, by name.
	feeds []feed
	// missing is a reference that leads nowhere, nil for none.
	missing *problem.Problem
}

// setStatus fills the status from what was observed.
func setStatus(current *api.OutboxConsumerStatus, seen observed) {
	current.ObservedGeneration = seen.consumer.Generation
	current.ConsumerID = registration.ID(seen.consumer)
	current.Verified = ""
	if e := seen.consumer.Spec.Evidence; e != nil {
		current.Verified = fmt.Sprintf("%d/%d %s", e.Passed, e.Checks, e.VerifiedAt.UTC().Format(time.DateOnly))
	}
	kstatus.SetConditions(&current.Conditions, seen.consumer.Generation, conditions(seen))
}

// watched are the conditions whose changes are recorded as Events.
var watched = []kstatus.Watch{
	{Condition: api.ReferencesResolvedCondition, Action: "ResolveReferences"},
	{Condition: api.RetentionSufficientCondition, Action: "CompareRetention"},
	{Condition: api.EventTypesSentCondition, Action: "CompareTypes"},
	{Condition: api.VerifiedCondition, Action: "Verify"},
	{Condition: api.ReadyCondition, Action: "Register"},
}

// conditions are computed here, all of them and nowhere else.
func conditions(seen observed) []metav1.Condition {
	references, retention := referencesResolved(seen), retentionSufficient(seen)
	all := []metav1.Condition{references, retention, typesSent(seen), verified(seen)}
	ready := kstatus.Condition(api.ReadyCondition, metav1.ConditionTrue, api.ReasonRegistered, "What is registered fits what feeds the consumer.")
	because := func(kind, reason, message string) {
		ready = kstatus.Condition(api.ReadyCondition, metav1.ConditionFalse, reason, message)
		all = append(all, kstatus.Condition(kind, metav1.ConditionTrue, reason, message))
	}
	switch {
	case seen.taken != "":
		because(api.StalledCondition, api.ReasonConsumerIDTaken, fmt.Sprintf(
			"OutboxConsumer %q has the id %q already, and two consumers with one id skip each other's events; give this one an id of its own in spec.consumerID, or delete one of the objects.",
			seen.taken, problem.Clip(registration.ID(seen.consumer), nameBytes)))
	case seen.missing != nil && seen.missing.Stalled:
		because(api.StalledCondition, references.Reason, references.Message)
	case references.Status == metav1.ConditionFalse:
		because(api.ReconcilingCondition, references.Reason, references.Message)
	case retention.Status == metav1.ConditionFalse:
		because(api.StalledCondition, retention.Reason, retention.Message)
	}
	return append(all, ready)
}

func referencesResolved(seen observed) metav1.Condition {
	const kind = api.ReferencesResolvedCondition
	if p := seen.missing; p != nil {
		return kstatus.Condition(kind, metav1.ConditionFalse, p.Reason, p.Message)
	}
	return kstatus.Condition(kind, metav1.ConditionTrue, api.ReasonResolved, "The dispatchers that feed it are there, and their Outboxes.")
}

// standard is the least retention of RULE-010-011.
const standard = 7 * 24 * time.Hour

// retentionSufficient compares with the longest retention of delivered rows. One that is not said is the default.
func retentionSufficient(seen observed) metav1.Condition {
	const kind = api.RetentionSufficientCondition
	needed, why := standard, "RULE-010-011 requires 168h at least"
	known := false
	for _, f := range seen.feeds {
		if f.retention == nil {
			continue
		}
		known = true
		if kept := f.retention.Delivered; kept != nil && kept.D() > needed {
			needed, why = kept.D(), fmt.Sprintf("dispatcher %q keeps delivered rows for %s", f.dispatcher.Name, kept)
		}
	}
	own := seen.consumer.Spec.Retention
	switch {
	case !known:
		return kstatus.Condition(kind, metav1.ConditionUnknown, api.ReasonNotObserved, "No dispatcher that feeds it is there with its database.")
	case own == 0:
		return kstatus.Condition(kind, metav1.ConditionTrue, api.ReasonRetentionSufficient, "It forgets no event that it has handled.")
	case own.D() < needed:
		return kstatus.Condition(kind, metav1.ConditionFalse, api.ReasonRetentionTooShort, fmt.Sprintf(
			"It knows for %s what it has handled, and %s: what comes again later is handled twice. Keep it for %s at least, and for longer than the age at which dead letters are replayed; then correct spec.retention.",
			own, why, spec.Duration(needed)))
	}
	return kstatus.Condition(kind, metav1.ConditionTrue, api.ReasonRetentionSufficient, fmt.Sprintf(
		"It knows for %s what it has handled, and delivered rows are kept for no longer. A dead letter that is replayed after that time may be handled twice.", own))
}

// Bounds of a message: how many types it names, and the bytes of each name.
const (
	namedTypes = 5
	nameBytes  = 60
)

// typesSent compares the types with those that dispatchers have claimed.
func typesSent(seen observed) metav1.Condition {
	const kind = api.EventTypesSentCondition
	var sent []string
	full := false
	for _, f := range seen.feeds {
		types := f.dispatcher.Status.EventTypes
		full = full || len(types) == status.EventTypesListed
		for _, t := range types {
			sent = append(sent, t.Type)
		}
	}
	var missing []string
	for _, registered := range slices.Sorted(slices.Values(seen.consumer.Spec.EventTypes)) {
		if len(registered) > status.EventTypeBytes { // a dispatcher does not list it
			continue
		}
		if !slices.ContainsFunc(sent, func(eventType string) bool { return registration.Covers(registered, eventType) }) {
			missing = append(missing, problem.Clip(strconv.Quote(registered), nameBytes))
		}
	}
	switch {
	case len(sent) == 0:
		return kstatus.Condition(kind, metav1.ConditionUnknown, api.ReasonNotObserved, "No dispatcher that feeds it has seen an event yet.")
	case len(missing) == 0:
		return kstatus.Condition(kind, metav1.ConditionTrue, api.ReasonTypesSent, "Events of each of its types were sent in the last 30 days.")
	case full:
		return kstatus.Condition(kind, metav1.ConditionUnknown, api.ReasonNotObserved, "Events are of so many types that the dispatchers' status has not all of them.")
	}
	which := strings.Join(missing[:min(len(missing), namedTypes)], ", ")
	if len(missing) > namedTypes {
		which += " and others"
	}
	return kstatus.Condition(kind, metav1.ConditionFalse, api.ReasonTypesNotSent, fmt.Sprintf(
		"No dispatcher that feeds it has sent events of these types in the last 30 days: %s. Correct spec.eventTypes, or the producer, or name the dispatcher that sends them in spec.dispatcherRefs.", which))
}

func verified(seen observed) metav1.Condition {
	reason, message := registration.Evidence(seen.consumer, seen.now)
	current := metav1.ConditionFalse
	if reason == api.ReasonVerified {
		current = metav1.ConditionTrue
	}
	return kstatus.Condition(api.VerifiedCondition, current, reason, message)
}
