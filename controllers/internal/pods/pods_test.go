package pods

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func TestWhatPodsLeaveBehind(t *testing.T) {
	of := func(said func([]corev1.Pod) (reason, text string)) func([]corev1.Pod) string {
		return func(pods []corev1.Pod) string {
			reason, text := said(pods)
			return reason + " " + text
		}
	}
	trouble, lastWords := of(Trouble), of(LastWords)
	container := func(state corev1.ContainerState) []corev1.Pod {
		return []corev1.Pod{{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "dispatcher", Image: "image:1", State: state}}}}}
	}
	waiting := func(reason, message string) []corev1.Pod {
		return container(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}})
	}
	ended := func(code int32, message string) []corev1.Pod {
		return container(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error", Message: message}})
	}
	crashing := func(code int32, reason, message string) []corev1.Pod {
		crashing := waiting("CrashLoopBackOff", "back-off 10s")
		crashing[0].Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message}
		return crashing
	}
	for want, got := range map[string]string{
		`ImagePullFailed The image "image:1" cannot be pulled; check its name and the pull secrets.`:                                        trouble(waiting("ImagePullBackOff", "Back-off 5m0s")),
		`CrashLoop The container "dispatcher" ends again and again; see ` + "`kubectl logs` with --previous.":                               trouble(waiting("CrashLoopBackOff", "back-off 10s")),
		`CrashLoop The container "dispatcher" ends again and again: the port is taken.`:                                                     trouble(crashing(1, "Error", "log line\nthe port is taken")),
		`CrashLoop The container "dispatcher" ends again and again, with exit code 2 (Error); see ` + "`kubectl logs` with --previous.":     trouble(crashing(2, "Error", "")),
		`OOMKilled The container "dispatcher" is killed again and again, because it exceeds its memory limit (OOMKilled); raise the limit.`: trouble(crashing(137, "OOMKilled", "")),
		`ContainerNotStarted The container "dispatcher" cannot be started: no such key.`:                                                    trouble(waiting("CreateContainerConfigError", "no such key")),
		"Unschedulable No node takes a pod: 0/1 nodes are available": trouble([]corev1.Pod{{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available"}}}}}),
		" correct the password":              lastWords(ended(1, "log line\ncorrect the password\n")),
		" it ended with exit code 2 (Error)": lastWords(ended(2, "")),
		"OOMKilled it was killed, because it exceeded its memory limit (OOMKilled); raise the limit": lastWords(container(corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled", Message: "log line"}})),
	} {
		need.Want(t, want, "got %q, want %q", got)
	}
	for want, pods := range map[string][]corev1.Pod{"replayLogin gets no rights: x": ended(0, "replayLogin gets no rights: x\n"), "": ended(1, "failed")} {
		need.Want(t, want, "a remark is %q, want %q", Remark(pods))
	}
	deleted := waiting("ImagePullBackOff", "Back-off 5m0s")
	deleted[0].DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	if got := trouble(waiting("ContainerCreating", "")) + lastWords(ended(0, "done")) + trouble(nil) + lastWords(nil) + trouble(deleted); strings.TrimSpace(got) != "" {
		t.Errorf("got %q, want nothing: no pod is in trouble", got)
	}
}

// What the kubelet said before it had mounted a pod's files is over.
func TestMountFailureEndsWhenMounted(t *testing.T) {
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
		need.Want(t, c.want, "%s: %v", mounting(&corev1.Pod{Status: c.status}), name)
	}
}

// Whoever floods a namespace with Events loses those of that namespace alone, and takes a bounded memory.
func TestEventsOfANamespaceAreBounded(t *testing.T) {
	m, now := NewMounts(nil), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	event := func(namespace, uid, message string, at time.Time) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, InvolvedObject: corev1.ObjectReference{UID: types.UID(uid)}, Message: message, LastTimestamp: metav1.NewTime(at)}
	}
	said := func(namespace, uid string) string {
		return m.FailedMount(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, UID: types.UID(uid)}}).Message
	}
	m.keep(event("shop", "1", "first", now), true, now)
	m.keep(event("shop", "1", "last", now.Add(time.Second)), true, now)
	m.keep(event("shop", "1", "out of order", now), true, now)
	m.keep(event("shop", "2", "gone", now), true, now)
	m.keep(event("shop", "2", "gone", now), false, now)
	long := strings.Repeat("x", 1<<20)
	for i := range 40_000 {
		m.keep(event("eve", fmt.Sprint(i, long[:1<<10]), long, now), true, now)
	}
	got := []string{said("shop", "1"), said("shop", "2"), said("eve", "1")}
	need.That(t, got[0] == "last" && got[1] == "" && got[2] == "", "%q", got)
	kept := m.failed["eve"].byPod.Len()
	need.That(t, kept <= maxPodsOfNamespace, "%d Events of a namespace are kept", kept)
	m.keep(event("other", "3", "", now), true, now.Add(2*eventsLast))
	need.Want(t, 1, "%d namespaces are kept after the time of their Events", len(m.failed))
}
