package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Watch registers the gauges: what the dispatcher knows of itself, and the backlog as it was
// counted last, nil before the first count.
func (m *Metrics) Watch(snapshot func() dispatcher.Snapshot, backlog func() *dispatcher.Depth) {
	m.registry.MustRegister(&gauges{m, snapshot, backlog})
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	pending     = describe("outbox_pending_events_count", "Rows due now. An estimate above 10,000.", "topic")
	scheduled   = describe("outbox_scheduled_events_count", "Rows due later. An estimate above 10,000.", "topic")
	processing  = describe("outbox_processing_events_count", "Rows leased by some dispatcher. An estimate above 10,000.", "topic")
	dead        = describe("outbox_dlq_events_count", "Dead rows that nobody has handled yet. An estimate above 10,000.", "topic")
	oldest      = describe("outbox_oldest_pending_age_seconds", "Age of the pending row that is due first, when it was counted. 0 for none.", "topic")
	observedAt  = describe("outbox_backlog_observed_timestamp_seconds", "When the backlog was counted, on the database's clock.")
	inFlight    = describe("outbox_in_flight_events", "Rows that this process has claimed and not yet written back.")
	inFlightB   = describe("outbox_in_flight_bytes", "Payload bytes of the rows in flight.")
	breaker     = describe("outbox_breaker_state", "1 for the state that the breaker is in: Closed, Unreachable or Refusing.", "state")
	sourceUp    = describe("outbox_source_up", "1 when the database answered last time, else 0.")
	schemaReady = describe("outbox_schema_ready", "1 when the outbox schema is one that this dispatcher works with, else 0.")
	sinkUp      = describe("outbox_sink_up", "1 when the destination took events, or answered, last time, else 0.")
)

type gauges struct {
	metrics  *Metrics
	snapshot func() dispatcher.Snapshot
	backlog  func() *dispatcher.Depth
}

// Describe implements [prometheus.Collector].
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{pending, scheduled, processing, dead, oldest, observedAt, inFlight, inFlightB, breaker, sourceUp, schemaReady, sinkUp} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	s := g.snapshot()
	gauge(inFlight, float64(s.InFlightRows))
	gauge(inFlightB, float64(s.InFlightBytes))
	for _, state := range []dispatcher.BreakerState{dispatcher.BreakerClosed, dispatcher.BreakerUnreachable, dispatcher.BreakerRefusing} {
		gauge(breaker, number(s.Breaker == state), string(state))
	}
	gauge(sourceUp, number(s.Source.OK))
	gauge(schemaReady, number(s.Schema.State == dispatcher.SchemaReady))
	gauge(sinkUp, number(s.Sink.OK))

	depth := g.backlog()
	if depth == nil {
		return
	}
	gauge(observedAt, float64(depth.ObservedAt.UnixMilli())/1000)
	for label, t := range g.byLabel(depth) {
		gauge(pending, t.pending, label)
		gauge(scheduled, t.scheduled, label)
		gauge(processing, t.processing, label)
		gauge(dead, t.dead, label)
		gauge(oldest, t.oldest, label)
	}
}

type counts struct{ pending, scheduled, processing, dead, oldest float64 }

// byLabel puts together the topics that share a label.
func (g *gauges) byLabel(depth *dispatcher.Depth) map[string]counts {
	all := map[string]counts{}
	for _, t := range depth.Topics {
		label := g.metrics.of(t.Topic).label
		c := all[label]
		c.pending += float64(t.Pending.N)
		c.scheduled += float64(t.Scheduled.N)
		c.processing += float64(t.Processing.N)
		c.dead += float64(t.Dead.N)
		if !t.OldestPending.IsZero() {
			c.oldest = max(c.oldest, depth.ObservedAt.Sub(t.OldestPending).Seconds())
		}
		all[label] = c
	}
	return all
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
