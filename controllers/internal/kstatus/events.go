package kstatus

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// Event is one of events.k8s.io. Its reason is the condition's.
type Event struct{ Kind, Reason, Action, Note string }

// Watch says what the operator was doing when it saw a condition. Each condition has an action of its own: two events of
// one pass with the same reason and action would be taken for a series.
type Watch struct{ Condition, Action string }

// bad is the status that is worth an Event. Reconciling is False where an annotation has the operator leave the object.
func (w Watch) bad() metav1.ConditionStatus {
	if w.Condition == api.ReconcilingCondition {
		return metav1.ConditionFalse
	}
	return api.BadStatus(w.Condition)
}

// expected are reasons of False that every start goes through.
var expected = []string{api.ReasonProgressing, api.ReasonMigrating, api.ReasonScaledToZero, api.ReasonReconcileDisabled}

// despite are reasons of a True Ready whose trouble is the Event of another condition.
var despite = []string{api.ReasonDeliveringDespiteTrouble, api.ReasonInUseDespiteTrouble}

// Transitions are the events that a change of the conditions is worth: one that became bad or has
// another reason for it, one that is good again, and Ready (CONTRACT C-43).
func Transitions(watched []Watch, before, after []metav1.Condition) []Event {
	var events []Event
	for _, w := range watched {
		was, is := meta.FindStatusCondition(before, w.Condition), meta.FindStatusCondition(after, w.Condition)
		if is == nil || (was != nil && was.Status == is.Status && was.Reason == is.Reason) {
			continue
		}
		switch ready, bad := w.Condition == api.ReadyCondition, w.bad(); {
		case is.Status == bad && !ready: // its cause has an Event of its own
			kind := corev1.EventTypeWarning
			if slices.Contains(expected, is.Reason) {
				kind = corev1.EventTypeNormal
			}
			events = append(events, Event{kind, is.Reason, w.Action, is.Message})
		case is.Status != bad && is.Status != metav1.ConditionUnknown && (ready && !slices.Contains(despite, is.Reason) || was != nil && was.Status == bad):
			events = append(events, Event{corev1.EventTypeNormal, is.Reason, w.Action, is.Message})
		}
	}
	return events
}
