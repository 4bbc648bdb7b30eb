package outboxdispatcher

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// event is one of events.k8s.io. Its reason is the condition's.
type event struct{ kind, reason, action, note string }

// actions are what the operator was doing when it saw the condition, and which status of it is bad.
// Each has its own: two events of one pass with the same reason and action would be taken for a
// series.
var actions = []struct {
	condition, action string
	bad               metav1.ConditionStatus
}{
	{api.SecretsResolvedCondition, "ResolveSecrets", metav1.ConditionFalse},
	{api.SchemaReadyCondition, "Migrate", metav1.ConditionFalse},
	{api.SourceReachableCondition, "ObserveSource", metav1.ConditionFalse},
	{api.SinkReachableCondition, "ObserveSink", metav1.ConditionFalse},
	{api.VacuumHeldBackCondition, "ObserveTransactions", metav1.ConditionTrue},
	{api.WorkloadAvailableCondition, "Deploy", metav1.ConditionFalse},
	{api.ReadyCondition, "Deliver", metav1.ConditionFalse},
}

// expected are reasons of False that every start goes through.
var expected = []string{api.ReasonProgressing, api.ReasonMigrating, api.ReasonScaledToZero}

// transitions are the events that a change of the status is worth: a condition that became bad or
// has another reason for it, one that is good again, Ready, and rows that died (CONTRACT C-43).
func transitions(before, after api.OutboxDispatcherStatus) []event {
	var events []event
	for _, a := range actions {
		was, is := meta.FindStatusCondition(before.Conditions, a.condition), meta.FindStatusCondition(after.Conditions, a.condition)
		if is == nil || (was != nil && was.Status == is.Status && was.Reason == is.Reason) {
			continue
		}
		switch ready := a.condition == api.ReadyCondition; {
		case is.Status == a.bad && !ready: // Ready's cause has told it
			kind := corev1.EventTypeWarning
			if slices.Contains(expected, is.Reason) {
				kind = corev1.EventTypeNormal
			}
			events = append(events, event{kind, is.Reason, a.action, is.Message})
		case is.Status != a.bad && is.Status != metav1.ConditionUnknown && (ready || was != nil && was.Status == a.bad):
			events = append(events, event{corev1.EventTypeNormal, is.Reason, a.action, is.Message})
		}
	}
	if after.Dead != nil && *after.Dead > deref(before.Dead) {
		events = append(events, event{corev1.EventTypeWarning, api.ReasonDeadLetters, "CountDeadLetters", deadLettersNote(deref(after.BlockedKeys) > 0)})
	}
	return events
}

func deref(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}
