package outboxdispatcher

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A container that keeps running has not been refused, whatever it said before.
func TestRefusalIsOver(t *testing.T) {
	now := time.Now()
	pod := corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "dispatcher",
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: exitConfig, Message: "lease is 1s; raise it (and 3 more)"}}}}}}
	for ran, want := range map[time.Duration]bool{time.Second: true, time.Minute: false} {
		pod.Status.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now.Add(-ran))}
		if got := refusal(&appsv1.Deployment{}, []corev1.Pod{pod}, now); (got != nil) != want {
			t.Errorf("runs for %s: %v", ran, got)
		}
	}
}
