package pods

import (
	"context"
	"fmt"
	"regexp"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Blocked is what keeps a Job from having a pod that runs, by Events that are read now: why no pod is made, or
// which files the kubelet cannot mount. Empty for nothing.
func Blocked(ctx context.Context, live client.Reader, job *batchv1.Job, pods []corev1.Pod) (string, error) {
	if len(pods) == 0 {
		words, err := event(ctx, live, job, "FailedCreate")
		if words == "" {
			return "", err
		}
		return "Its pod cannot be created: " + whose.ReplaceAllString(words, "a pod is forbidden: "), err
	}
	newest := &pods[len(pods)-1]
	if newest.Status.Phase != corev1.PodPending {
		return "", nil
	}
	words, err := MountFailure(ctx, live, newest)
	if words == "" {
		return "", err
	}
	return "Its pod waits for files: " + words, err
}

// MountFailure is what the kubelet said last of a pod whose files it cannot mount, empty for nothing.
func MountFailure(ctx context.Context, live client.Reader, pod *corev1.Pod) (string, error) {
	if !mounting(pod) {
		return "", nil
	}
	return event(ctx, live, pod, "FailedMount")
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

// event is the message of the object's last event with the reason, empty for none.
func event(ctx context.Context, live client.Reader, o client.Object, reason string) (string, error) {
	var events corev1.EventList
	err := live.List(ctx, &events, client.InNamespace(o.GetNamespace()), client.MatchingFields{"involvedObject.uid": string(o.GetUID()), "reason": reason})
	if err != nil {
		return "", fmt.Errorf("list the Events %s: %w", reason, err)
	}
	var last corev1.Event
	for _, e := range events.Items {
		if !e.LastTimestamp.Before(&last.LastTimestamp) {
			last = e
		}
	}
	return last.Message, nil
}
