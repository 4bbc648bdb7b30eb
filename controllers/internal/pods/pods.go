// Package pods says in words what keeps pods from running, and what they said last.
package pods

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// List returns the pods with the labels, by name. It waits for no annotation that the operator gives to a pod: the same one twice
// is once. It returns an error when they cannot be listed.
func List(ctx context.Context, c client.Reader, namespace string, labels map[string]string, more ...client.ListOption) ([]corev1.Pod, error) {
	var pods corev1.PodList
	more = append(more, client.InNamespace(namespace), client.MatchingLabels(labels), client.DisableReadYourWritesConsistency)
	if err := c.List(ctx, &pods, more...); err != nil {
		return nil, fmt.Errorf("list the pods with the labels %v: %w", labels, err)
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods.Items, nil
}

// Trouble returns why a pod does not start, as a reason of conditions and a sentence, both empty when none is in trouble.
// The sentence names no pod and has no count, so it stays the same while the cause does.
func Trouble(pods []corev1.Pod) (reason, text string) {
	for i := range pods {
		pod := &pods[i]
		if pod.DeletionTimestamp != nil {
			continue
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
				return v1alpha1.ReasonUnschedulable, "No node takes a pod: " + c.Message
			}
		}
		for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			if reason, text = containerTrouble(status); text != "" {
				return reason, text
			}
		}
	}
	return "", ""
}

func containerTrouble(status corev1.ContainerStatus) (reason, text string) {
	waiting := status.State.Waiting
	if waiting == nil {
		return "", ""
	}
	switch waiting.Reason {
	case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull":
		return v1alpha1.ReasonImagePullFailed, fmt.Sprintf("The image %q cannot be pulled; check its name and the pull secrets.", status.Image)
	case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
		return v1alpha1.ReasonContainerNotStarted, problem.Sentence(fmt.Sprintf("the container %q cannot be started: %s", status.Name, waiting.Message))
	case "CrashLoopBackOff":
		reason, text = crashes(status)
		return reason, problem.Sentence(text)
	}
	return "", ""
}

// crashes says how a container that crashes again and again ended last.
func crashes(status corev1.ContainerStatus) (reason, text string) {
	ended := LastEnd(status)
	reason, text = v1alpha1.ReasonCrashLoop, fmt.Sprintf("The container %q ends again and again", status.Name)
	switch {
	case ended == nil:
		return reason, text + "; see `kubectl logs` with --previous"
	case ended.Reason == v1alpha1.ReasonOOMKilled:
		return ended.Reason, fmt.Sprintf("The container %q is killed again and again, because it exceeds its memory limit (OOMKilled); raise the limit", status.Name)
	case LastLine(ended.Message) != "":
		return reason, text + ": " + LastLine(ended.Message)
	default:
		return reason, fmt.Sprintf("%s, with exit code %d (%s); see `kubectl logs` with --previous", text, ended.ExitCode, ended.Reason)
	}
}

// LastEnd is how the container ended last, nil when it has not.
func LastEnd(status corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	if t := status.State.Terminated; t != nil {
		return t
	}
	return status.LastTerminationState.Terminated
}

// LastLine is the end of what a container left behind.
func LastLine(words string) string {
	words = strings.TrimSpace(words)
	return problem.Clip(strings.TrimSpace(words[strings.LastIndex(words, "\n")+1:]), problem.MaxMessage/2)
}

// Remark is what the dispatcher's container of the last pod that ended well left behind, empty for nothing.
func Remark(pods []corev1.Pod) string {
	for i := len(pods) - 1; i >= 0; i-- {
		for _, status := range pods[i].Status.ContainerStatuses {
			if t := status.State.Terminated; t != nil && t.ExitCode == 0 {
				return LastLine(t.Message)
			}
		}
	}
	return ""
}

// LastWords is the last line that the dispatcher's container of the last pod left behind, with a reason of conditions where
// that says more than that the pod failed.
func LastWords(pods []corev1.Pod) (reason, text string) {
	for i := len(pods) - 1; i >= 0; i-- {
		for _, status := range pods[i].Status.ContainerStatuses {
			switch t := status.State.Terminated; {
			case t == nil || t.ExitCode == 0:
			case t.Reason == v1alpha1.ReasonOOMKilled:
				return t.Reason, "it was killed, because it exceeded its memory limit (OOMKilled); raise the limit"
			case LastLine(t.Message) != "":
				return "", LastLine(t.Message)
			default:
				return "", fmt.Sprintf("it ended with exit code %d (%s)", t.ExitCode, t.Reason)
			}
		}
	}
	return "", ""
}
