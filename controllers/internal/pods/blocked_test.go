package pods

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// What the kubelet said before it had mounted a pod's files is over.
func TestMounting(t *testing.T) {
	waits := func(reason string) corev1.PodStatus {
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}}
	}
	ready := waits("ContainerCreating")
	ready.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
	for name, c := range map[string]struct {
		status corev1.PodStatus
		want   bool
	}{
		"nothing yet": {corev1.PodStatus{}, true}, "creating": {waits("ContainerCreating"), true}, "pulling": {ready, false}, "not pulled": {waits("ImagePullBackOff"), false},
	} {
		if got := mounting(&corev1.Pod{Status: c.status}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
