package scale

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// What a user with the role edit in a namespace of his own may make, with the operator's label: the sum of it takes
// neither the manager's memory nor the others' time, also when the manager begins.
func TestHostileObjectsLeaveMemoryAndOthersAlone(t *testing.T) {
	const size, configMaps, events, pods, templates = 4, 300, 40_000, 140, 8
	w := newWorld(t, "bounded", size, func(int) behaviour { return wellBehaved })
	w.dispatchers(size, nil)
	well := func(int) behaviour { return wellBehaved }
	w.until("all", 5*time.Minute, func() (bool, string) { return w.reconciled(size, well) })
	control := w.operator.memory()

	labels := map[string]string{"outbox.dev/managed-by": "outbox-operator", "outbox.dev/dispatcher": name(0), "outbox.dev/component": "dispatcher"}
	meta := func(kind string, i int) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: fmt.Sprintf("eve-%s-%d", kind, i), Namespace: w.namespace, Labels: labels}
	}
	megabyte := strings.Repeat("x", 1_000_000)
	w.many(configMaps, func(i int) client.Object {
		return &corev1.ConfigMap{ObjectMeta: meta("file", i), Data: map[string]string{"file": megabyte}}
	})
	w.many(pods, func(i int) client.Object {
		return &corev1.Pod{ObjectMeta: meta("pod", i), Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"no": "node"},
			Containers:   []corev1.Container{{Name: "dispatcher", Image: "image", Env: []corev1.EnvVar{{Name: "A", Value: megabyte}}}},
		}}
	})
	w.many(events, func(i int) client.Object {
		return &corev1.Event{ObjectMeta: meta("event", i), Reason: "FailedMount", Message: megabyte[:1000], LastTimestamp: metav1.Now(),
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: w.namespace, Name: fmt.Sprint("pod-", i), UID: types.UID(fmt.Sprint(i))}}
	})
	var volumes strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&volumes, `,{"name":"v%d"}`, i)
	}
	w.many(templates, func(i int) client.Object {
		return &v1alpha1.OutboxDispatcher{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("eve-%d", i), Namespace: w.namespace}, Spec: v1alpha1.OutboxDispatcherSpec{
			Namespace: "shop", Topics: []string{name(i)}, Sink: v1alpha1.Sink{Log: &v1alpha1.LogSink{}}, Database: &v1alpha1.DispatcherDatabase{SecretRef: v1alpha1.SecretRef{Name: "db"}},
			Pods: v1alpha1.Pods{Template: &runtime.RawExtension{Raw: []byte(`{"spec":{"volumes":[` + volumes.String()[1:] + `]}}`)}},
		}}
	})
	edit := w.edit(0)
	during := w.operator.memory()
	w.operator.stop()
	w.operator = startOperator(t, w.cfg, w.namespace)
	again := w.edit(1)
	memory := w.operator.memory()
	t.Logf("manager %.0f MiB before, %.0f MiB with the hostile objects and an edit after %.1f s, %.0f MiB from its start and an edit after %.1f s", control, during, edit.Seconds(), memory, again.Seconds())
	if max(during, memory) > maxMemory {
		t.Errorf("the manager took %.0f MiB, want %d at most", max(during, memory), maxMemory)
	}
}

// many creates so many objects, eight at a time.
func (w *world) many(n int, object func(int) client.Object) {
	w.t.Helper()
	var group sync.WaitGroup
	for part := range 8 {
		group.Go(func() {
			for i := part; i < n; i += 8 {
				if err := w.admin.Create(w.t.Context(), object(i)); err != nil {
					w.t.Errorf("create object %d: %v", i, err)
					return
				}
			}
		})
	}
	group.Wait()
}
