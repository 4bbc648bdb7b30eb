package manager

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What the cache keeps of an Event is small, whoever wrote it.
func TestEventsAreSmallInTheCache(t *testing.T) {
	stripped, err := stripEvent(&corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "e", Annotations: map[string]string{"big": strings.Repeat("x", 1<<20)}},
		Message:    `secret "db" not found` + strings.Repeat(" ", 1<<20), Action: strings.Repeat("x", 1<<20),
	})
	if err != nil {
		t.Fatal(err)
	}
	e := stripped.(*corev1.Event)
	if size := e.Size(); size > 3<<10 || !strings.HasPrefix(e.Message, `secret "db" not found`) {
		t.Errorf("%d bytes: %.40q", size, e.Message)
	}
}
