// Package kstatus writes conditions as kstatus reads them, once if anything changed, and records the changes as
// Events.
package kstatus

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// Condition is one whose message is a sentence.
func Condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: problem.Sentence(message)}
}

// SetConditions replaces the conditions; one that stays as it was keeps its time of transition.
// Reconciling and Stalled go when now does not have them.
func SetConditions(conditions *[]metav1.Condition, generation int64, now []metav1.Condition) {
	for _, kstatus := range []string{v1alpha1.ReconcilingCondition, v1alpha1.StalledCondition} {
		if meta.FindStatusCondition(now, kstatus) == nil {
			meta.RemoveStatusCondition(conditions, kstatus)
		}
	}
	for _, c := range now {
		c.ObservedGeneration = max(generation, 0)
		meta.SetStatusCondition(conditions, c)
	}
}

// SetFailure says that a pass could not be finished, which is the operator's trouble and not the
// object's: what is known of the object stays. The main condition is always there: Ready, or Complete of what ends.
func SetFailure(conditions *[]metav1.Condition, generation int64, main string, failure error) {
	meta.RemoveStatusCondition(conditions, v1alpha1.StalledCondition)
	message := problem.Sentence("the operator could not finish, and tries again: " + failure.Error())
	if meta.FindStatusCondition(*conditions, main) == nil {
		meta.SetStatusCondition(conditions, metav1.Condition{Type: main, Status: metav1.ConditionUnknown,
			Reason: v1alpha1.ReasonProgressing, Message: message, ObservedGeneration: generation})
	}
	meta.SetStatusCondition(conditions, metav1.Condition{Type: v1alpha1.ReconcilingCondition, Status: metav1.ConditionTrue,
		Reason: v1alpha1.ReasonProgressing, Message: message, ObservedGeneration: generation})
}
