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

// List returns the pods with the labels, by name. It returns an error when they cannot be listed.
func List(ctx context.Context, c client.Reader, namespace string, labels map[string]string) ([]corev1.Pod, error) {
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels(labels)); err != nil {
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
		return v1alpha1.ReasonCrashLoop, problem.Sentence(crashes(status))
	}
	return "", ""
}

// crashes says how a container that crashes again and again ended last.
func crashes(status corev1.ContainerStatus) string {
	ended := LastEnd(status)
	switch text := fmt.Sprintf("The container %q ends again and again", status.Name); {
	case ended == nil:
		return text + "; see `kubectl logs` with --previous"
	case ended.Reason == "OOMKilled":
		return fmt.Sprintf("The container %q is killed again and again, because it exceeds its memory limit (OOMKilled); raise the limit", status.Name)
	case LastLine(ended.Message) != "":
		return text + ": " + LastLine(ended.Message)
	default:
		return fmt.Sprintf("%s, with exit code %d (%s); see `kubectl logs` with --previous", text, ended.ExitCode, ended.Reason)
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

// LastWords is the last line that the dispatcher's container of the last pod left behind.
func LastWords(pods []corev1.Pod) string {
	for i := len(pods) - 1; i >= 0; i-- {
		for _, status := range pods[i].Status.ContainerStatuses {
			if t := status.State.Terminated; t != nil && t.ExitCode != 0 {
				if last := LastLine(t.Message); last != "" {
					return last
				}
				return fmt.Sprintf("it ended with exit code %d (%s)", t.ExitCode, t.Reason)
			}
		}
	}
	return ""
}
