package consumer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of RULE-010-041, with the label consumer_id. One serves all consumers of a process:
//
//	outbox_consumer_events_processed_total      deliveries, by result: success, failure
//	outbox_consumer_duplicates_skipped_total    deliveries of events that were handled before
//	outbox_consumer_processing_latency_seconds  how long a delivery took that ran its effect, or failed
//	outbox_consumer_retry_count                 how many deliveries came before this one (its attempt less one)
//
// A duplicate is in the second and fourth alone, an older delivery that was given up in the fourth alone.
type Metrics struct {
	processed      *prometheus.CounterVec
	duplicates     *prometheus.CounterVec
	latency, retry *prometheus.HistogramVec
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	const consumerID = "consumer_id"
	m := &Metrics{
		processed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outbox_consumer_events_processed_total", Help: "Deliveries that ran their effect or failed, by result: success or failure.",
		}, []string{consumerID, "result"}),
		duplicates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outbox_consumer_duplicates_skipped_total", Help: "Deliveries of events that were handled before.",
		}, []string{consumerID}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "outbox_consumer_processing_latency_seconds", Help: "How long a delivery took that ran its effect, or failed.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300},
		}, []string{consumerID}),
		retry: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "outbox_consumer_retry_count", Help: "How many deliveries of the event came before this one.",
			Buckets: []float64{0, 1, 2, 3, 5, 8, 12, 19, 50, 100},
		}, []string{consumerID}),
	}
	registry.MustRegister(m.processed, m.duplicates, m.latency, m.retry)
	return m
}

// start makes the series of a consumer, at 0, so that the first event is an increase.
func (m *Metrics) start(id string) {
	if m == nil {
		return
	}
	for _, result := range []string{"success", "failure"} {
		m.processed.WithLabelValues(id, result)
	}
	m.duplicates.WithLabelValues(id)
}

func (m *Metrics) observe(id string, e *Event, outcome Outcome, took time.Duration) {
	if m == nil {
		return
	}
	m.retry.WithLabelValues(id).Observe(float64(max(0, e.Attempt-1)))
	switch outcome {
	case AlreadyHandled:
		m.duplicates.WithLabelValues(id).Inc()
	case Handled, Failed:
		result := "success"
		if outcome == Failed {
			result = "failure"
		}
		m.processed.WithLabelValues(id, result).Inc()
		m.latency.WithLabelValues(id).Observe(took.Seconds())
	}
}
