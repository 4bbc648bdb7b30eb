package outboxdispatcher

import (
	"fmt"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
)

// podTrouble says why a pod does not come up, empty when none is in trouble. It names no pod and
// holds no count, so it stays the same while the cause does.
func podTrouble(pods []corev1.Pod) string {
	for i := range pods {
		pod := &pods[i]
		if pod.DeletionTimestamp != nil {
			continue
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
				return "No node takes a pod: " + c.Message
			}
		}
		for _, status := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
			if text := containerTrouble(status); text != "" {
				return text
			}
		}
	}
	return ""
}

func containerTrouble(status corev1.ContainerStatus) string {
	waiting := status.State.Waiting
	if waiting == nil {
		return ""
	}
	switch waiting.Reason {
	case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull":
		return fmt.Sprintf("The image %q cannot be pulled; check its name and the pull secrets.", status.Image)
	case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
		return sentence(fmt.Sprintf("the container %q cannot be started: %s", status.Name, waiting.Message))
	case "CrashLoopBackOff":
		return fmt.Sprintf("The container %q ends again and again; see `kubectl logs` with --previous.", status.Name)
	}
	return ""
}

// lastWords is the last line that the dispatcher's container of the last pod left behind.
func lastWords(pods []corev1.Pod) string {
	for i := len(pods) - 1; i >= 0; i-- {
		for _, status := range pods[i].Status.ContainerStatuses {
			if t := status.State.Terminated; t != nil && t.ExitCode != 0 {
				lines := strings.Split(strings.TrimSpace(t.Message), "\n")
				if last := strings.TrimSpace(lines[len(lines)-1]); last != "" {
					return clip(last, maxMessage/2)
				}
				return fmt.Sprintf("it ended with exit code %d (%s)", t.ExitCode, t.Reason)
			}
		}
	}
	return ""
}

// maxMessage bounds the text of a condition, in bytes: it becomes the note of an event, which must
// be shorter than 1,024.
const maxMessage = 1000

// sentence starts with a capital letter, ends with a full stop, and is not too long.
func sentence(text string) string {
	text = clip(strings.TrimSpace(text), maxMessage)
	if text == "" {
		return ""
	}
	if !strings.HasSuffix(text, ".") && !strings.HasSuffix(text, "…") {
		text += "."
	}
	if word, _, _ := strings.Cut(text, " "); strings.Contains(word, "://") {
		return text // a URL is written as it is
	}
	runes := []rune(text)
	runes[0] = unicode.ToUpper(runes[0])
	return string(runes)
}

func clip(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + "…"
}
