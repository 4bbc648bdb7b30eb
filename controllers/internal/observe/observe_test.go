package observe

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outbox-operator/outbox-operator/dispatcher/report"
)

func pod(name string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "127.0.0.1"}}
}

func TestAll(t *testing.T) {
	var flaky atomic.Int64
	mux := http.NewServeMux()
	say := func(name, worker string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(report.Status{Name: name, Worker: worker})
		}
	}
	mux.HandleFunc("/well", say("shop/orders", "well"))
	mux.HandleFunc("/other", say("shop/invoices", "other"))
	mux.HandleFunc("/ill", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) })
	mux.HandleFunc("/html", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) })
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/well", http.StatusFound) })
	mux.HandleFunc("/flaky", func(w http.ResponseWriter, r *http.Request) {
		if flaky.Add(1) == 1 {
			http.Error(w, "not yet", http.StatusServiceUnavailable)
			return
		}
		say("shop/orders", "flaky")(w, r)
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	c := NewClient()
	c.URL = func(pod *corev1.Pod) string { return server.URL + "/" + pod.Name }

	var workers []string
	for _, s := range c.All(t.Context(), "shop/orders", []corev1.Pod{pod("well"), pod("other"), pod("ill"), pod("html"), pod("moved"), pod("flaky"), pod("unknown")}) {
		workers = append(workers, s.Worker)
	}
	if want := []string{"well", "flaky"}; !slices.Equal(workers, want) {
		t.Errorf("answers of %v, want %v: our own that answer, the second time at the latest", workers, want)
	}
	if got := c.All(t.Context(), "shop/orders", nil); got != nil {
		t.Errorf("answers %v of no pod", got)
	}
}

func TestRunning(t *testing.T) {
	pending, leaving, homeless, unready := pod("pending"), pod("leaving"), pod("homeless"), pod("unready")
	pending.Status.Phase = corev1.PodPending
	leaving.DeletionTimestamp = &metav1.Time{}
	homeless.Status.PodIP = ""
	unready.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	var names []string
	for _, p := range Running([]corev1.Pod{pending, leaving, homeless, unready}) {
		names = append(names, p.Name)
	}
	if !slices.Equal(names, []string{"unready"}) {
		t.Errorf("pods %v, want the one that runs, ready or not", names)
	}
}

func TestPodURL(t *testing.T) {
	p := pod("six")
	p.Status.PodIP = "fd00::1"
	if got := PodURL(&p); got != "http://[fd00::1]:8080/status" || !strings.HasSuffix(got, report.Path) {
		t.Errorf("URL %s", got)
	}
}
