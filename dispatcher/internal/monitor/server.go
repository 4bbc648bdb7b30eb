package monitor

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
)

// stuckAfter is the silence of the claim loop after which the process is not alive any more. Every
// wait of the loop has a time limit, and all of them together are shorter.
const stuckAfter = 90 * time.Second

// Handler serves
//
//	/healthz  200 while the process works, also when the database or the destination is unreachable:
//	          a restart would not help.
//	/readyz   200 while events are delivered, or would be; else 503 and a line for each cause.
//	/status   report.Status as JSON. The whole of it, with keys and ids, is for callers on this machine or
//	          in this pod (kubectl port-forward, exec); others get a brief one, and so do ?brief and a page in a
//	          browser that reaches a forwarded port by a name of its own.
//	/dead…    deadletters.Handler of Sources.DeadLetters, and so is /events/…: for callers on this machine or in
//	          this pod alone.
//	/metrics  for Prometheus, with exemplars when it requests OpenMetrics.
func Handler(p Process, from Sources, metrics prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeCauses(w, stuck(from.Snapshot(), p.StartedAt, time.Now()))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		writeCauses(w, unready(statusOf(p, from.Snapshot())))
	})
	mux.HandleFunc("GET "+status.Path, func(w http.ResponseWriter, r *http.Request) {
		current := from.status(p)
		if r.URL.Query().Has("brief") || !local(r.RemoteAddr) || !loopback(r.Host) {
			current = current.Brief()
		}
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false) // it is JSON, and else up to six times as long
		_ = encoder.Encode(current)  // fails only when the client is gone
	})
	if from.DeadLetters != nil {
		deadLetters := private(deadletters.Handler(from.DeadLetters))
		for _, path := range []string{deadletters.ListPath, deadletters.ListPath + "/", deadletters.EventsPath + "/"} {
			mux.Handle("GET "+path, deadLetters)
		}
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	return mux
}

// private refuses callers from elsewhere, and pages in a browser that reach a forwarded port by a name of their own.
func private(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !local(r.RemoteAddr) || !loopback(r.Host) {
			http.Error(w, "dead letters are shown to callers in this pod alone; use kubectl outbox, or kubectl port-forward", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// loopback reports whether a request's host, with or without a port, is this machine's name for itself.
func loopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	address, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && address.IsLoopback()
}

// local reports whether a caller is on this machine or in this pod. No other address of 127.0.0.0/8 counts: a
// mesh's proxy in the pod may use one for calls from elsewhere (Istio's is 127.0.0.6).
func local(remote string) bool {
	caller, err := netip.ParseAddrPort(remote)
	if err != nil {
		return false
	}
	address := caller.Addr().Unmap()
	return address == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || address == netip.IPv6Loopback()
}

func writeCauses(w http.ResponseWriter, causes []string) {
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
