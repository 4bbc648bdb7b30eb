package observe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func running(name string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "127.0.0.1"}}
}

func TestStatusIsBoundedAndBrief(t *testing.T) {
	current := status.Status{Name: "shop/orders", Backlog: &status.Backlog{Topics: []status.TopicCounts{{Topic: "a"}}}}
	for range 50 {
		current.PausedTopics = append(current.PausedTopics, status.PausedTopic{Topic: strings.Repeat("x", 300)})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/well", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(current) })
	mux.HandleFunc("/ill", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) })
	mux.HandleFunc("/html", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) })
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/well", http.StatusFound) })
	mux.HandleFunc("/huge", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(append([]byte(`{"name":"shop/orders"}`), bytes.Repeat([]byte(" "), maxBody)...))
	})
	mux.HandleFunc("/header", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X", strings.Repeat("x", 2*maxHeader))
		_ = json.NewEncoder(w).Encode(current)
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	c := NewClient()
	for path, wrong := range map[string]string{
		"/well":    "",
		"/ill":     "500",
		"/html":    "did not respond with a status",
		"/moved":   "302",
		"/huge":    fmt.Sprintf("more than %d bytes", maxBody),
		"/header":  "header",
		"/unknown": "404",
	} {
		got, err := c.get(t.Context(), server.URL+path)
		switch {
		case wrong == "" && (err != nil || got.Name != "shop/orders"):
			t.Errorf("%s: %+v, %v", path, got, err)
		case wrong == "" && (len(got.PausedTopics) != 8 || len(got.PausedTopics[0].Topic) > 100 || got.Backlog.Topics != nil):
			t.Errorf("%s: kept more than a brief status: %+v", path, got)
		case wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong)):
			t.Errorf("%s: %v, want %s", path, err, wrong)
		}
	}
}

func TestRunningPodHasAnAddressAndStays(t *testing.T) {
	pending, leaving, homeless, unready := running("pending"), running("leaving"), running("homeless"), running("unready")
	pending.Status.Phase = corev1.PodPending
	leaving.DeletionTimestamp = &metav1.Time{}
	homeless.Status.PodIP = ""
	unready.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	for _, p := range []corev1.Pod{pending, leaving, homeless, unready} {
		need.Want(t, p.Name == "unready", "%s: %v", Running(&p), p.Name)
	}
}

func TestPodURL(t *testing.T) {
	p := running("six")
	p.Status.PodIP = "fd00::1"
	need.Want(t, "http://[fd00::1]:8080/status?brief", "URL %s", PodURL(&p))
}
