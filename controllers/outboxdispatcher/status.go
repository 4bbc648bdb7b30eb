package outboxdispatcher

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/dispatcher/report"
)

// observed is what one pass has seen. The status follows from it and from nothing else.
type observed struct {
	obd *v1alpha1.OutboxDispatcher // its spec and metadata
	// problem stopped the pass, nil for nothing.
	problem   *problem
	migration migration
	// deployment is nil when there is none of ours.
	deployment *appsv1.Deployment
	pods       []corev1.Pod
	// answers are those of the pods that told their status.
	answers []report.Status
}

// setStatus fills the status from what was observed. The counts stay when no pod told them.
func setStatus(status *v1alpha1.OutboxDispatcherStatus, o observed) {
	status.ObservedGeneration = o.obd.Generation
	status.Sink = desired.SinkKind(o.obd.Spec.Sink)
	status.Selector = labels.SelectorFromSet(desired.Selector(o.obd, desired.NameDispatcher)).String()
	status.Replicas, status.ReadyReplicas = 0, 0
	if o.deployment != nil {
		status.Replicas, status.ReadyReplicas = o.deployment.Status.Replicas, o.deployment.Status.ReadyReplicas
	}
	setCounts(status, o.answers, blocks(o.obd))
	setConditions(&status.Conditions, o.obd.Generation, conditions(o))
}

// setCounts takes the newest count, of blocked keys only where keys may block. Its time alone is no
// change, so that an idle outbox is not written about.
func setCounts(status *v1alpha1.OutboxDispatcherStatus, answers []report.Status, blocks bool) {
	if !blocks {
		status.BlockedKeys = nil
	}
	newest := newestBacklog(answers)
	if newest == nil {
		return
	}
	counted := *status
	counted.Pending, counted.Scheduled = &newest.Pending, &newest.Scheduled
	counted.Processing, counted.Dead = &newest.Processing, &newest.Dead
	if blocks {
		counted.BlockedKeys = &newest.BlockedKeys
	}
	counted.Estimated = newest.Estimated
	counted.OldestPending = nil
	if newest.OldestPending != nil {
		counted.OldestPending = toSeconds(*newest.OldestPending)
	}
	if !equal(*status, counted) {
		counted.ObservedTime = toSeconds(newest.ObservedAt)
		*status = counted
	}
}

// newestBacklog is the count with the latest time of the database, nil when none was told.
func newestBacklog(answers []report.Status) *report.Backlog {
	var newest *report.Backlog
	for i := range answers {
		if b := answers[i].Backlog; b != nil && (newest == nil || b.ObservedAt.After(newest.ObservedAt)) {
			newest = b
		}
	}
	return newest
}

// toSeconds is what an object can hold of a time.
func toSeconds(t time.Time) *metav1.Time {
	seconds := metav1.NewTime(t.Truncate(time.Second))
	return &seconds
}

// setConditions replaces the conditions; one that stays as it was keeps its time of transition.
func setConditions(conditions *[]metav1.Condition, generation int64, now []metav1.Condition) {
	for _, kstatus := range []string{v1alpha1.ReconcilingCondition, v1alpha1.StalledCondition} {
		if meta.FindStatusCondition(now, kstatus) == nil {
			meta.RemoveStatusCondition(conditions, kstatus)
		}
	}
	for _, c := range now {
		c.ObservedGeneration = generation
		meta.SetStatusCondition(conditions, c)
	}
}

// setFailure says that a pass could not be finished, which is the operator's trouble and not the
// object's: what is known of the object stays.
func setFailure(status *v1alpha1.OutboxDispatcherStatus, generation int64, failure error) {
	meta.RemoveStatusCondition(&status.Conditions, v1alpha1.StalledCondition)
	message := sentence("the operator could not finish, and tries again: " + failure.Error())
	if meta.FindStatusCondition(status.Conditions, v1alpha1.ReadyCondition) == nil {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionUnknown,
			Reason: v1alpha1.ReasonProgressing, Message: message, ObservedGeneration: generation})
	}
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: v1alpha1.ReconcilingCondition, Status: metav1.ConditionTrue,
		Reason: v1alpha1.ReasonProgressing, Message: message, ObservedGeneration: generation})
}

func equal(a, b v1alpha1.OutboxDispatcherStatus) bool { return equality.Semantic.DeepEqual(a, b) }
