package deadletterreplay

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/kstatus"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// setStatus fills the status from what was observed. Counts stay until new ones are reported.
func setStatus(current *api.DeadLetterReplayStatus, seen observed) {
	current.ObservedGeneration = seen.replay.Generation
	progress := seen.left
	if progress == nil && seen.podStatus != nil {
		progress = seen.podStatus.Replay
	}
	if progress != nil {
		setProgress(current, seen.replay, *progress)
		if seen.left == nil {
			current.FinishedAt = 0 // it is final once the Job's pod has left its outcome
		}
	}
	kstatus.SetConditions(&current.Conditions, seen.replay.Generation, conditions(seen))
}

func setProgress(current *api.DeadLetterReplayStatus, o *api.DeadLetterReplay, p status.Replay) {
	current.Progress, current.Done = &p.Progress, ptr.To(p.Done())
	if o.Spec.DryRun {
		current.Done = ptr.To[int64](0)
		return
	}
	current.ID = string(o.UID)
	current.EndsAt = status.At(p.EndsAt.Time().Round(10 * time.Second)) // as often as it is read
}

// conditions are computed here, all of them and nowhere else.
func conditions(seen observed) []metav1.Condition {
	references, schema, source := referencesResolved(seen), schemaReady(seen), sourceReachable(seen)
	complete, others := complete(seen, references, source, schema)
	all := []metav1.Condition{complete, references, schema, source}
	for _, kind := range others {
		all = append(all, kstatus.Condition(kind, metav1.ConditionTrue, complete.Reason, complete.Message))
	}
	return all
}

// What is True while a replay is not complete: it continues by itself, or waits for a person, or has come to its end.
var (
	continues = []string{api.ReconcilingCondition}
	waits     = []string{api.StalledCondition}
	failed    = []string{api.FailedCondition, api.StalledCondition}
)

// complete is True at a good end. Else it says what is the matter, with the types of the conditions that are True then.
func complete(seen observed, causes ...metav1.Condition) (c metav1.Condition, others []string) {
	finished := func(message string) metav1.Condition {
		return kstatus.Condition(api.CompleteCondition, metav1.ConditionTrue, api.ReasonFinished, message)
	}
	not := func(reason, message string) metav1.Condition {
		return kstatus.Condition(api.CompleteCondition, metav1.ConditionFalse, reason, message)
	}
	switch p := seen.left; {
	case p != nil && p.Stopped != "":
		return not(api.ReasonAborted, fmt.Sprintf("It was stopped before its end: %s. %sOf %d dead letters %s. The skipped ones stay open; see why the others fail, and create another object for the rest.",
			p.Stopped, why(*p), p.Matched, counts(*p))), failed
	case p != nil && seen.replay.Spec.DryRun:
		return finished(fmt.Sprintf("Nothing was changed: %s would take %d of %d dead letters.", seen.replay.Spec.Action, p.Waiting, p.Matched)), nil
	case p != nil:
		return finished(fmt.Sprintf("Each dead letter has its outcome: of %d %s.", p.Matched, counts(*p))), nil
	case seen.failed != nil:
		return not(seen.failed.Reason, seen.failed.Message), failed
	case seen.problem != nil && seen.problem.Stalled:
		return not(seen.problem.Reason, seen.problem.Message), waits
	case seen.problem != nil:
		return not(seen.problem.Reason, seen.problem.Message), continues
	case seen.job != nil && hasCondition(seen.job, batchv1.JobFailed):
		reason := api.ReasonJobFailed
		if refusedFiles(seen.job) {
			reason = api.ReasonRefused
		}
		return not(reason, fmt.Sprintf("The Job has failed and is not repeated: %s. Delete this object, and create another.",
			cmp.Or(strings.TrimSuffix(seen.detail, "."), "see its Events"))), failed
	case seen.noOutcome != "" && seen.gaveUp && seen.replay.Spec.DryRun: // the database keeps no row of it
		return not(api.ReasonJobFailed, fmt.Sprintf("The dry run's Job succeeded %d times without an outcome, the last time because %s. Nothing was changed. "+
			"Let the pod write the file of its terminationMessagePath, and let nothing remove pods that have just ended; then delete this object, and create another.",
			maxJobs, seen.noOutcome)), failed
	case seen.noOutcome != "" && seen.gaveUp:
		return not(api.ReasonJobFailed, fmt.Sprintf("The Job succeeded %d times without an outcome, the last time because %s. The dead letters had their turn: "+
			"`dispatcher dead operations --operation %s` has the outcome. Let the pod write the file of its terminationMessagePath, and let nothing remove pods that have just ended; then delete this object.",
			maxJobs, seen.noOutcome, seen.replay.UID)), failed
	case seen.noOutcome != "":
		return not(api.ReasonProgressing, fmt.Sprintf("The Job succeeded without an outcome, because %s. It is repeated a little later to report it, and replays nothing twice.", seen.noOutcome)), continues
	}
	for _, c := range causes {
		if c.Status == metav1.ConditionFalse {
			return not(c.Reason, c.Message), continues
		}
	}
	if seen.podStatus != nil && seen.podStatus.Replay != nil {
		if p := *seen.podStatus.Replay; p.Stopped != "" {
			return not(api.ReasonAborted, fmt.Sprintf("It was stopped before its end: %s. %sWhat it has put back is tried until it is delivered or dead.", p.Stopped, why(p))), continues
		}
		if reasons := why(*seen.podStatus.Replay); reasons != "" {
			return not(api.ReasonWaiting, strings.TrimSpace(reasons)), continues
		}
		return not(api.ReasonRunning, "The set is fixed, and its dead letters have their turn; status has the counts."), continues
	}
	return not(api.ReasonProgressing, strings.TrimSpace("The Job's pod starts. "+problem.Sentence(seen.detail))), continues
}

// why is what is in the way, in sentences.
func why(p status.Replay) (text string) {
	for _, one := range p.Why() {
		text += problem.Sentence(one) + " "
	}
	return text
}

// referencesResolved believes the pod that mounts the Secrets: the operator may not read them.
func referencesResolved(seen observed) metav1.Condition {
	const kind = api.ReferencesResolvedCondition
	for _, p := range []*problem.Problem{seen.problem, seen.missing} {
		if p != nil && p.Condition == kind {
			return kstatus.Condition(kind, metav1.ConditionFalse, p.Reason, p.Message)
		}
	}
	if seen.podStatus != nil || seen.left != nil {
		return kstatus.Condition(kind, metav1.ConditionTrue, api.ReasonResolved, "All that the spec names was there when the Job's pod started.")
	}
	return kstatus.Condition(kind, metav1.ConditionUnknown, api.ReasonNotObserved, "The Job's pod has not started yet.")
}

func sourceReachable(seen observed) metav1.Condition {
	const kind = api.SourceReachableCondition
	switch {
	case seen.left != nil, seen.podStatus != nil && seen.podStatus.Source.State == status.Reachable:
		return kstatus.Condition(kind, metav1.ConditionTrue, api.ReasonConnected, "The database is reached.")
	case seen.podStatus != nil && seen.podStatus.Source.State != status.Unknown:
		return kstatus.Condition(kind, metav1.ConditionFalse, cmp.Or(seen.podStatus.Source.Reason, api.ReasonConnectionFailed), seen.podStatus.Source.Message)
	}
	return kstatus.Condition(kind, metav1.ConditionUnknown, api.ReasonNotObserved, "The Job's pod has not reported it yet.")
}

func schemaReady(seen observed) metav1.Condition {
	const kind = api.SchemaReadyCondition
	state := ""
	if seen.podStatus != nil {
		state = seen.podStatus.Schema.State
	}
	switch {
	case seen.left != nil, state == "Ready":
		return kstatus.Condition(kind, metav1.ConditionTrue, api.ReasonUpToDate, "The outbox schema is up to date.")
	case state == api.ReasonMissing, state == api.ReasonTooOld, state == api.ReasonTooNew, state == api.ReasonDiffers, state == api.ReasonSequencesBehind:
		return kstatus.Condition(kind, metav1.ConditionFalse, state, seen.podStatus.Schema.Message)
	}
	return kstatus.Condition(kind, metav1.ConditionUnknown, api.ReasonNotObserved, "The Job's pod has not reported it yet.")
}

// counts are the outcomes in words, without those that are none.
func counts(p status.Replay) string {
	return cmp.Or(strings.Join(p.Outcomes("are ", "skipped (%s)"), ", "), "none had its turn")
}

// watched are the conditions whose changes are recorded as Events.
var watched = []kstatus.Watch{
	{Condition: api.ReferencesResolvedCondition, Action: "ResolveReferences"},
	{Condition: api.SchemaReadyCondition, Action: "Connect"},
	{Condition: api.SourceReachableCondition, Action: "Reach"},
}

// started is when the set was fixed, 0 before.
func started(o *api.DeadLetterReplay) status.Time {
	return ptr.Deref(o.Status.Progress, status.Progress{}).StartedAt
}

// transitions are the events that a change is worth: that it began, that it came to an end, and what is in the way.
func transitions(before, after *api.DeadLetterReplay) []kstatus.Event {
	events := kstatus.Transitions(watched, before.Status.Conditions, after.Status.Conditions)
	if started(before) == 0 && started(after) != 0 {
		events = append(events, kstatus.Event{Kind: corev1.EventTypeNormal, Reason: api.ReasonBegan, Action: "Begin", Note: problem.Sentence(fmt.Sprintf(
			"%s of %d dead letters began, requested by %s: %s", after.Spec.Action, after.Status.Matched, after.Spec.RequestedBy, after.Spec.Reason))})
	}
	was, is := meta.FindStatusCondition(before.Status.Conditions, api.CompleteCondition), meta.FindStatusCondition(after.Status.Conditions, api.CompleteCondition)
	if is == nil || was != nil && was.Reason == is.Reason {
		return events
	}
	switch is.Reason {
	case api.ReasonFinished:
		events = append(events, kstatus.Event{Kind: corev1.EventTypeNormal, Reason: is.Reason, Action: "Finish", Note: is.Message})
	case api.ReasonAborted, api.ReasonRefused, api.ReasonJobFailed, api.ReasonInvalidPodTemplate, api.ReasonForeignObject, api.ReasonApplyRefused:
		events = append(events, kstatus.Event{Kind: corev1.EventTypeWarning, Reason: is.Reason, Action: "Finish", Note: is.Message})
	}
	return events
}
