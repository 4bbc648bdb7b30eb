package metrics_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/metrics"
)

const traceID = "4bf92f3577b34da6a3ce929d0e0e4736"

// openMetrics is what Prometheus gets.
func openMetrics(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	response, request := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
	request.Header.Set("Accept", "application/openmetrics-text;version=1.0.0")
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(response, request)
	if !strings.HasPrefix(response.Header().Get("Content-Type"), "application/openmetrics-text") {
		t.Fatalf("the response is %s", response.Header().Get("Content-Type"))
	}
	return response.Body.String()
}

// A histogram of durations leads to the trace of an event that its producer sampled.
func TestExemplars(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := metrics.New(registry, "orders", "shop", "kafka")
	e := &dispatcher.Event{Topic: "orders", Attempt: 1, Headers: map[string]string{"traceparent": "00-" + traceID + "-00f067aa0ba902b7-01"}}
	m.Delivered(e, 7*time.Millisecond, 20*time.Millisecond)
	m.Failed(e, errors.New("refused"), time.Minute, time.Second)
	m.Acked(e, 3*time.Second)
	text := openMetrics(t, registry)
	for _, want := range []string{
		`outbox_delivery_duration_seconds_bucket{dispatcher="orders",outbox_namespace="shop",outcome="confirmed",sink="kafka",topic="orders",le="0.025"} 1 # {trace_id="` + traceID + `"} 0.02 `,
		`outbox_dispatch_latency_seconds_bucket{dispatcher="orders",outbox_namespace="shop",sink="kafka",topic="orders",le="0.01"} 1 # {trace_id="` + traceID + `"} 0.007 `,
		`outbox_delivery_duration_seconds_bucket{dispatcher="orders",outbox_namespace="shop",outcome="failed",sink="kafka",topic="orders",le="60.0"} 1 # {trace_id="` + traceID + `"} 60.0 `,
		`outbox_end_to_end_latency_seconds_bucket{dispatcher="orders",outbox_namespace="shop",sink="kafka",topic="orders",le="5.0"} 1 # {trace_id="` + traceID + `"} 3.0 `,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("missing: %s", want)
		}
	}
	if n := strings.Count(text, "trace_id"); n != 4 || t.Failed() {
		t.Errorf("%d exemplars, want 4:\n%s", n, text)
	}
}

// No exemplar without a trace that was sampled, and nothing that a producer wrote is shown.
// CONTRACT: C-73
func TestNoExemplar(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := metrics.New(registry, "orders", "shop", "kafka")
	for _, parent := range []string{
		"", "s3cr3t", "00-" + traceID + "-00f067aa0ba902b7-00", "00-" + traceID + "-00f067aa0ba902b7-0z",
		"00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01", "00-" + strings.Repeat("s3cr3t+/", 4) + "-00f067aa0ba902b7-01",
	} {
		m.Delivered(&dispatcher.Event{Topic: "orders", Attempt: 1, Headers: map[string]string{"traceparent": parent}}, time.Second, time.Second)
	}
	if text := openMetrics(t, registry); strings.Contains(text, "trace_id") || strings.Contains(text, "s3cr3t") {
		t.Error(text)
	}
}

// BenchmarkObserve shows what an event costs here, and an exemplar on top.
func BenchmarkObserve(b *testing.B) {
	for name, parent := range map[string]string{"plain": "", "sampled": "00-" + traceID + "-00f067aa0ba902b7-01"} {
		b.Run(name, func(b *testing.B) {
			m := metrics.New(prometheus.NewRegistry(), "orders", "shop", "kafka")
			e := &dispatcher.Event{Topic: "orders", Attempt: 1, Headers: map[string]string{"traceparent": parent}}
			b.ReportAllocs()
			for b.Loop() {
				m.Delivered(e, time.Millisecond, time.Millisecond)
				m.Acked(e, time.Millisecond)
			}
		})
	}
}
