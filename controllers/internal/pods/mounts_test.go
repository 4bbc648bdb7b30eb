package pods

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Whoever floods a namespace with Events loses those of that namespace alone, and takes a bounded memory.
func TestEventsOfANamespaceAreBounded(t *testing.T) {
	m, now := NewMounts(nil), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	event := func(namespace, uid, message string, at time.Time) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, InvolvedObject: corev1.ObjectReference{UID: types.UID(uid)}, Message: message, LastTimestamp: metav1.NewTime(at)}
	}
	said := func(namespace, uid string) string {
		e, err := m.FailedMount(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, UID: types.UID(uid)}})
		if err != nil {
			t.Fatal(err)
		}
		return e.Message
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
	if got := []string{said("shop", "1"), said("shop", "2"), said("eve", "1")}; got[0] != "last" || got[1] != "" || got[2] != "" {
		t.Errorf("%q", got)
	}
	if kept := m.failed["eve"].byPod.Len(); kept > maxPodsOfNamespace {
		t.Errorf("%d Events of a namespace are kept", kept)
	}
	m.keep(event("other", "3", "", now), true, now.Add(2*eventsLast))
	if len(m.failed) != 1 {
		t.Errorf("%d namespaces are kept after the time of their Events", len(m.failed))
	}
}
