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

// A verdict of the API server on the pod stays, a failure may pass.
func TestRefused(t *testing.T) {
	for words, want := range map[string]bool{
		`Its pod cannot be created: a pod is forbidden: error looking up service account shop/orders: serviceaccount "orders" not found`:                             true,
		`Its pod cannot be created: Error creating: admission webhook "images.example.com" denied the request: no digest`:                                            true,
		`Its pod cannot be created: Error creating: Pod "orders-try-x" is invalid: spec.containers[0].image: Required value`:                                         true,
		`Its pod cannot be created: Error creating: Internal error occurred: failed calling webhook "images.example.com": connection refused`:                        false,
		`Its pod cannot be created: Error creating: Operation cannot be fulfilled on resourcequotas "pods": the object has been modified; please apply your changes`: false,
		"": false,
	} {
		if got := Refused(words); got != want {
			t.Errorf("%q: %v", words, got)
		}
	}
}
