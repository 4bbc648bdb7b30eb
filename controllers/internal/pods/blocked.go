package pods

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Blocked returns what keeps a Job from having a pod that runs, by Events that are read now: why no pod is made, or
// which files the kubelet cannot mount. Empty for nothing. It returns an error
// when Events cannot be read.
func Blocked(ctx context.Context, live client.Reader, mounts FailedMounts, job *batchv1.Job, pods []corev1.Pod) (string, error) {
	if len(pods) == 0 {
		return notCreated(ctx, live, job)
	}
	newest := &pods[len(pods)-1]
	if newest.Status.Phase != corev1.PodPending {
		return "", nil
	}
	if words := MountFailure(mounts, newest); words != "" {
		return "Its pod waits for files: " + words, nil
	}
	return "", nil
}

// notCreated returns why no pod of the Job was made last, by an Event that is read now. Empty for nothing.
func notCreated(ctx context.Context, live client.Reader, job *batchv1.Job) (string, error) {
	var events corev1.EventList
	which := client.MatchingFields{"reason": "FailedCreate", "involvedObject.uid": string(job.UID)}
	if err := live.List(ctx, &events, client.InNamespace(job.Namespace), which, client.Limit(maxEvents)); err != nil {
		return "", fmt.Errorf("list the Events of %s: %w", job.Name, err)
	}
	var last corev1.Event
	for _, e := range events.Items {
		if !e.LastTimestamp.Before(&last.LastTimestamp) {
			last = e
		}
	}
	if last.Message == "" {
		return "", nil
	}
	return "Its pod cannot be created: " + whose.ReplaceAllString(last.Message, "a pod is forbidden: "), nil
}

// FailedMount is the reason of the kubelet's Event about files that it cannot mount.
const FailedMount = "FailedMount"

// FailedMounts finds Events [FailedMount].
type FailedMounts interface {
	// FailedMount returns the pod's last one, the zero Event for none.
	FailedMount(pod *corev1.Pod) corev1.Event
}

// MountFailure returns the kubelet's last message about a pod that waits for files, empty for none.
func MountFailure(mounts FailedMounts, pod *corev1.Pod) string {
	if !mounting(pod) {
		return ""
	}
	return mounts.FailedMount(pod).Message
}

// An Event about a running pod's files counts for missedFor. The kubelet mounts them again each minute or two. When it
// cannot, it retries after 122 seconds at most, and records an Event each time; after oftenRecorded of them it may record
// one in five minutes only, so each counts for missedLong then. It records no Event when a retry succeeds.
const (
	missedFor     = 3 * time.Minute
	missedLong    = 8 * time.Minute
	oftenRecorded = 20
)

// RemountFailure returns the message of the kubelet's recent Event about a running pod whose files it cannot mount again,
// empty for none. One that is not later than since does not count. The pod keeps running with the files that it has.
func RemountFailure(mounts FailedMounts, pod *corev1.Pod, since, now time.Time) string {
	last, counts := mounts.FailedMount(pod), missedFor
	if last.Count > oftenRecorded {
		counts = missedLong
	}
	if at := last.LastTimestamp.Time; !at.After(started(pod)) || !at.After(since) || now.Sub(at) > counts {
		return ""
	}
	return last.Message
}

// FilesThere is when a pod started last for the first time: the kubelet had mounted the files of its template for it. Zero
// when none has.
func FilesThere(pods []corev1.Pod) (since time.Time) {
	for i := range pods {
		restarted := slices.ContainsFunc(pods[i].Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.RestartCount > 0 })
		if at := started(&pods[i]); !restarted && at.After(since) {
			since = at
		}
	}
	return since
}

// started is when a container of the pod started last: then its files were there.
func started(pod *corev1.Pod) (last time.Time) {
	for _, status := range pod.Status.ContainerStatuses {
		for _, state := range []corev1.ContainerState{status.State, status.LastTerminationState} {
			if r := state.Running; r != nil && r.StartedAt.After(last) {
				last = r.StartedAt.Time
			}
			if t := state.Terminated; t != nil && t.StartedAt.After(last) {
				last = t.StartedAt.Time
			}
		}
	}
	return last
}

// mounting reports whether the kubelet still mounts the pod's files. What it said before it had them is
// over.
func mounting(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue {
			return false
		}
	}
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := status.State.Waiting; w == nil || w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			return false
		}
	}
	return true
}

// whose begins a refusal with the pod's name, which is another one each time.
var whose = regexp.MustCompile(`^Error creating: pods "[^"]*" is forbidden: `)

// maxEvents bounds a list of Events: Kubernetes repeats one instead of making another.
const maxEvents = 100
