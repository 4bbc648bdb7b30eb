package monitor

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/report"
)

// stuckAfter is the silence of the claim loop after which the process is not alive any more. Every
// wait of the loop has a time limit, and all of them together are shorter.
const stuckAfter = 90 * time.Second

// Handler serves
//
//	/healthz  200 while the process works, also when the database or the destination is away:
//	          a restart would not help.
//	/readyz   200 while events are delivered, or would be; else 503 and a line for each cause.
//	/status   report.Status as JSON.
//	/metrics  for Prometheus, with exemplars when it asks for OpenMetrics.
func Handler(p Process, from Sources, metrics prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, stuck(from.Snapshot(), p.StartedAt, time.Now()))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, unready(status(p, from.Snapshot())))
	})
	mux.HandleFunc("GET "+report.Path, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(from.full(p)) // fails only when the client is gone
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	return mux
}

func answer(w http.ResponseWriter, causes []string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if len(causes) == 0 {
		fmt.Fprintln(w, "ok")
		return
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	fmt.Fprintln(w, strings.Join(slices.Sorted(slices.Values(causes)), "\n"))
}

// stuck says that the claim loop hangs.
func stuck(s dispatcher.Snapshot, startedAt, now time.Time) []string {
	last := s.LookedAt
	if last.IsZero() {
		last = startedAt
	}
	if silence := now.Sub(last); !s.Draining && silence > stuckAfter {
		return []string{fmt.Sprintf("the claim loop has not moved for %s; restart the process", silence.Round(time.Second))}
	}
	return nil
}
