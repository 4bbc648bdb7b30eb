package deadletterreplay

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/status"
	api "github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/migrate"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pods"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
	"github.com/outbox-operator/outbox-operator/controllers/internal/references"
)

// observed is what one pass has seen. The status follows from it and from nothing else.
type observed struct {
	replay *api.DeadLetterReplay
	// problem kept the Job from being made, nil for nothing.
	problem *problem.Problem
	// missing is a reference that leads nowhere, nil for none.
	missing *problem.Problem
	// job is the replay's, nil when there is none.
	job *batchv1.Job
	// failed is the condition of a replay whose Job is gone, nil for one that has not failed.
	failed *metav1.Condition
	// podStatus is the status of the Job's pod, nil when none responds.
	podStatus *status.Status
	// left is what the Job's pod has left at its end, nil before.
	left *status.Replay
	// noOutcome is why the Job that succeeded has no outcome, empty otherwise. gaveUp means that it is not repeated.
	noOutcome string
	gaveUp    bool
	// detail is what keeps the pod from running, or why it failed.
	detail string
}

// observePods observes the Job's pods. A pod with the label that the Job does not own is not one of them.
func (r *Reconciler) observePods(ctx context.Context, seen *observed, resolved desired.Replay) error {
	o, job := seen.replay, seen.job
	all, err := r.pods(ctx, job)
	if err != nil {
		return err
	}
	if seen.left = finalProgress(all); seen.left == nil && hasCondition(job, batchv1.JobComplete) {
		return r.repeatJob(ctx, seen, all)
	}
	key := client.ObjectKeyFromObject(o)
	if heard := r.Observer.Observe(key, desired.ProcessName(o), all); len(heard.Statuses) > 0 {
		seen.podStatus = &heard.Statuses[len(heard.Statuses)-1]
		return nil
	}
	if seen.left != nil {
		return nil
	}
	if resolved.Outbox != nil && resolved.Outbox.Spec.ReplayLogin != nil {
		seen.missing = references.Missing(r.Mounts, references.OfReplay(resolved), all)
	}
	if _, seen.detail = pods.Trouble(all); seen.detail == "" && !running(all) {
		_, seen.detail = pods.LastWords(all)
	}
	if seen.detail == "" && job.Status.Ready == nil || job.Status.Ready != nil && *job.Status.Ready == 0 {
		blocked, err := pods.Blocked(ctx, r.Live, r.Mounts, job, all)
		if err != nil {
			return err
		}
		if blocked != "" {
			seen.detail = blocked
		}
	}
	return nil
}

// maxJobs is how many Jobs of a replay may succeed without an outcome that can be read.
const maxJobs = 5

// repeatJob repeats a Job whose pod has left no outcome: the replay reports it once more. It does so a few times, each time
// later, like a migration. The count is an annotation of the object, so it survives a restart of the operator.
func (r *Reconciler) repeatJob(ctx context.Context, seen *observed, all []corev1.Pod) error {
	o, job := seen.replay, seen.job
	tried := max(1, asNumber(o.Annotations[desired.AnnotationAttempt])) // when it was edited, the delay starts over
	seen.noOutcome, seen.gaveUp = "its pod is gone", tried >= maxJobs
	if len(all) > 0 {
		seen.noOutcome = "its pod left no termination message that can be read"
	}
	if seen.gaveUp || job.Status.CompletionTime != nil && time.Since(job.Status.CompletionTime.Time) < migrate.RetryDelay(tried) {
		return nil
	}
	switch err := r.Client.Delete(ctx, job, client.Preconditions{UID: &job.UID}, client.PropagationPolicy(metav1.DeletePropagationBackground)); {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // it is deleted already, and counted
	case err != nil:
		return fmt.Errorf("delete Job %s, which left no outcome: %w", job.Name, err)
	}
	r.applied.Drop(o, "Job/"+job.Name)
	counted := o.DeepCopy()
	metav1.SetMetaDataAnnotation(&counted.ObjectMeta, desired.AnnotationAttempt, strconv.Itoa(tried+1))
	if err := r.Client.Patch(ctx, counted, client.MergeFrom(o)); err != nil {
		return fmt.Errorf("count the Jobs of DeadLetterReplay %s: %w", o.Name, err)
	}
	return nil
}

// asNumber is 0 for a text that is not a number.
func asNumber(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}

// pods of a Job, the oldest first.
func (r *Reconciler) pods(ctx context.Context, job *batchv1.Job) ([]corev1.Pod, error) {
	all, err := pods.List(ctx, r.Client, job.Namespace, map[string]string{batchv1.JobNameLabel: job.Name})
	all = slices.DeleteFunc(all, func(pod corev1.Pod) bool { return !metav1.IsControlledBy(&pod, job) })
	slices.SortStableFunc(all, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return all, err
}

func running(all []corev1.Pod) bool {
	return slices.ContainsFunc(all, func(pod corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning })
}

// finalProgress is the progress in the termination message of a pod that came to the end, nil for none.
func finalProgress(all []corev1.Pod) *status.Replay {
	for _, pod := range all {
		for _, current := range pod.Status.ContainerStatuses {
			ended := current.State.Terminated
			if current.Name != desired.Container || ended == nil || ended.ExitCode != 0 {
				continue
			}
			progress := &status.Replay{}
			if err := json.Unmarshal([]byte(ended.Message), progress); err == nil {
				if progress.FinishedAt == 0 {
					progress.FinishedAt = status.At(ended.FinishedAt.Time) // of a dry run
				}
				bounded := progress.Final()
				return &bounded
			}
		}
	}
	return nil
}

// hasCondition reports whether a Job has a condition.
func hasCondition(job *batchv1.Job, kind batchv1.JobConditionType) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue })
}

// refusedFiles reports whether the Job has ended because the dispatcher refused its files.
func refusedFiles(job *batchv1.Job) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool { return c.Reason == batchv1.JobReasonPodFailurePolicy })
}

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
		if err := r.Whole(ctx, found.Dispatcher); err != nil {
			return found, err
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
	if err := r.Whole(ctx, found.Outbox); err != nil {
		return found, err
	}
	if err := problem.Incomplete(api.ReferencesResolvedCondition, "Outbox", outbox.Name, found.Outbox.Spec); err != nil {
		return found, err
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
