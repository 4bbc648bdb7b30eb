// Package metrics exports what a dispatcher does to Prometheus.
//
// # Names
//
// All metrics with their types, labels and meanings are in README.md, which a test compares with what this
// package registers. The names of 13 of them are fixed by CONTRACT C-95, and [New] and
// [Metrics.Watch] must keep them. Two of these end in _events_count, which Prometheus' conventions leave to
// histograms. All other names follow the conventions.
//
// A failed delivery counts in at most one of the three errors counters; what counts in none was refused by the
// destination for another cause.
//
// # Labels
//
// Every series has dispatcher, outbox_namespace and sink: the dispatcher's name, the outbox namespace that it
// serves, and the kind of its sink, such as kafka. Counters of a topic are 0 from the moment that the topic is
// known: those of the configuration at the start, others when they are first counted. All other labels are bounded: reason, outcome, state, kind and table
// are words of this project; topic has at most [MaxTopics] values, of histograms [MaxHistogramTopics], and [OtherTopics]. No label holds a key, an
// id, a tenant, an address or an error's text.
//
// Counters and histograms are this process's own: sum them over the replicas. The gauges of the backlog and the
// tables are about the whole outbox, and every replica shows the same: take their maximum.
//
// # Exemplars
//
// The histograms of durations and latencies carry the trace_id of an event whose producer sampled its trace: from
// a slow bucket to the trace of an event in it. Prometheus keeps them with --enable-feature=exemplar-storage; it
// requests OpenMetrics by itself.
package metrics

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// MaxTopics bounds the values of the label topic, and MaxHistogramTopics those of the histograms, each of which has
// about 20 series for a topic. Topics beyond them, in the order in which they were seen, share the value [OtherTopics].
// The topics of the configuration come first. MaxSeries is what a process has at most.
const (
	MaxTopics          = 200
	MaxHistogramTopics = 20
	OtherTopics        = "_other"
	MaxSeries          = 7000
)

// Metrics is a [dispatcher.Observer]. Make one with [New].
type Metrics struct {
	vectors                           vectors
	leaseLost, refused, claimsRefused prometheus.Counter
	removed                           *prometheus.CounterVec
	registry                          prometheus.Registerer

	topics sync.Map   // topic -> *series
	adding sync.Mutex // of those to come
	count  int
	others atomic.Pointer[series] // of the topics beyond MaxTopics, which are not kept
}

var _ dispatcher.Observer = (*Metrics)(nil)

// vectors have a series for each topic.
type vectors struct {
	claimed, published, delivered, failed, dead, expired, invalid, network, timeouts *prometheus.CounterVec
	claimSize, wait, duration, retryDelay, latency                                   *prometheus.HistogramVec
}

// series are the vectors' of one topic.
type series struct {
	label                                                                      string
	claimed, published, delivered, failed, expired, invalid, network, timeouts prometheus.Counter
	wait, confirmedIn, failedIn, latency                                       prometheus.ExemplarObserver
	claimSize, retryDelay                                                      prometheus.Observer
}

// deadReasons are the values of the label reason.
var deadReasons = []dispatcher.DeadReason{
	dispatcher.ReasonMaxRetriesExceeded, dispatcher.ReasonPoisonMessage, dispatcher.ReasonSchemaValidationFailed,
	dispatcher.ReasonProcessingTimeout, dispatcher.ReasonPermanentFailure,
}

// New registers the metrics of a dispatcher, with its name, its outbox namespace and the kind of its sink as
// labels on each. The topics are those that it is known to serve: their counters are 0 from the start, so
// that the first event is an increase. Other topics have theirs once they are seen.
func New(registry prometheus.Registerer, name, namespace, sink string, topics ...string) *Metrics {
	registry = prometheus.WrapRegistererWith(prometheus.Labels{"dispatcher": name, "outbox_namespace": namespace, "sink": sink}, registry)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append(labels, "topic"))
		registry.MustRegister(v)
		return v
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: buckets,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
		}, append(labels, "topic"))
		registry.MustRegister(v)
		return v
	}
	m := &Metrics{registry: registry, vectors: vectors{
		claimed:   counter("outbox_events_claimed_total", "Rows leased."),
		published: counter("outbox_events_published_total", "Events that the sink confirmed."),
		expired:   counter("outbox_events_expired_total", "Events whose time was over at their claim: they are not sent."),
		delivered: counter("outbox_events_delivered_total", "Events marked delivered, after the sink's confirmation."),
		failed:    counter("outbox_events_failed_total", "Deliveries that failed."),
		dead:      counter("outbox_events_dlq_total", "Events that became dead.", "reason"),
		invalid:   counter("outbox_validation_errors_total", "Failed deliveries whose payload breaks its schema or a rule. The events are dead."),
		network:   counter("outbox_network_errors_total", "Failed deliveries for which the destination could not be reached or the connection broke."),
		timeouts:  counter("outbox_timeout_errors_total", "Failed deliveries without a response in time."),
		claimSize: histogram("outbox_claim_size_events", "Rows of a topic in a claim that found some.",
			[]float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000}),
		wait: histogram("outbox_dispatch_latency_seconds", "From an event's creation until its delivery began, for events that the sink confirmed at the first attempt.",
			[]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400}),
		duration: histogram("outbox_delivery_duration_seconds", "How long a delivery took, by outcome: confirmed or failed.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}, "outcome"),
		retryDelay: histogram("outbox_retry_delay_seconds", "How long a row waits after a failed delivery.",
			[]float64{.1, .5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600}),
		latency: histogram("outbox_end_to_end_latency_seconds", "From an event's creation until it was marked delivered.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 240, 480, 900, 1800, 3600, 14400}), // outages are of minutes
	}}
	m.leaseLost = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "outbox_lease_lost_total", Help: "Outcomes that could not be written because another worker held the row by then.",
	})
	m.refused = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "outbox_outcomes_refused_total", Help: "Outcomes that the database refused. Their events are delivered again when the leases end.",
	})
	m.removed = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "outbox_retention_removed_total", Help: "What this process removed after its retention, by kind: delivered rows, withdrawn and expired rows as withdrawn, dead rows, dead letters; expired are dead letters that retention resolved.",
	}, []string{"kind"})
	m.claimsRefused = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "outbox_claims_refused_total", Help: "Events that the database refused to lease to this process. Each is left alone for five minutes, and tried again then.",
	})
	registry.MustRegister(m.leaseLost, m.refused, m.claimsRefused, m.removed)
	m.Removed(0, 0, 0, 0, 0)
	for _, topic := range topics {
		m.of(topic)
	}
	return m
}

// Build registers outbox_build_info, which is 1 and has the binary's version as a label.
func (m *Metrics) Build(version string) {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "outbox_build_info", Help: "1, with the version of the binary."}, []string{"version"})
	info.WithLabelValues(version).Set(1)
	m.registry.MustRegister(info)
}

// Objective registers what events are held to: the time within which each is to be delivered, and the part of the time, from 0 to 1,
// in which none is older.
func (m *Metrics) Objective(freshness time.Duration, target float64) {
	for name, of := range map[string]struct {
		value float64
		help  string
	}{
		"outbox_objective_freshness_seconds": {freshness.Seconds(), "Within which time an event is to be delivered, from when it is due first: objective.freshness."},
		"outbox_objective_target_ratio":      {target, "The part of the time, from 0 to 1, in which no event is to be older than that: objective.target."},
	} {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: of.help}, func() float64 { return of.value }))
	}
}

// of returns the series of a topic, and makes them, at 0, when it is new.
func (m *Metrics) of(topic string) *series {
	if s, ok := m.topics.Load(topic); ok {
		return s.(*series)
	}
	if s := m.others.Load(); s != nil {
		return s
	}
	m.adding.Lock()
	defer m.adding.Unlock()
	if s, ok := m.topics.Load(topic); ok {
		return s.(*series)
	}
	label, detailed := topic, topic
	if m.count++; m.count > MaxTopics {
		label = OtherTopics
	}
	if m.count > MaxHistogramTopics {
		detailed = OtherTopics
	}
	v := &m.vectors
	for _, reason := range deadReasons {
		v.dead.WithLabelValues(string(reason), label)
	}
	s := &series{
		label:   label,
		claimed: v.claimed.WithLabelValues(label), published: v.published.WithLabelValues(label),
		delivered: v.delivered.WithLabelValues(label), failed: v.failed.WithLabelValues(label),
		expired: v.expired.WithLabelValues(label), invalid: v.invalid.WithLabelValues(label),
		network: v.network.WithLabelValues(label), timeouts: v.timeouts.WithLabelValues(label),
		confirmedIn: exemplars(v.duration.WithLabelValues("confirmed", detailed)), failedIn: exemplars(v.duration.WithLabelValues("failed", detailed)),
		retryDelay: v.retryDelay.WithLabelValues(detailed), latency: exemplars(v.latency.WithLabelValues(detailed)),
		claimSize: v.claimSize.WithLabelValues(detailed), wait: exemplars(v.wait.WithLabelValues(detailed)),
	}
	if label == OtherTopics {
		m.others.Store(s)
	} else {
		m.topics.Store(topic, s)
	}
	return s
}

// Claimed implements [dispatcher.Observer].
func (m *Metrics) Claimed(topic string, n int) {
	s := m.of(topic)
	s.claimed.Add(float64(n))
	s.claimSize.Observe(float64(n))
}

// Delivered implements [dispatcher.Observer].
func (m *Metrics) Delivered(e *dispatcher.Event, waited, took time.Duration) {
	s, trace := m.of(e.Topic), exemplar(e)
	s.published.Inc()
	s.confirmedIn.ObserveWithExemplar(took.Seconds(), trace)
	if e.Attempt == 1 { // later ones waited for the destination
		s.wait.ObserveWithExemplar(waited.Seconds(), trace)
	}
}

// Acked implements [dispatcher.Observer].
func (m *Metrics) Acked(e *dispatcher.Event, latency time.Duration) {
	s := m.of(e.Topic)
	s.delivered.Inc()
	s.latency.ObserveWithExemplar(latency.Seconds(), exemplar(e))
}

// Failed implements [dispatcher.Observer].
func (m *Metrics) Failed(e *dispatcher.Event, err error, took, delay time.Duration) {
	s := m.of(e.Topic)
	s.failed.Inc()
	s.failedIn.ObserveWithExemplar(took.Seconds(), exemplar(e))
	if delay > 0 {
		s.retryDelay.Observe(delay.Seconds())
	}
	var slow interface{ Timeout() bool } // context.DeadlineExceeded and net.Error have it
	if why, _ := dispatcher.PermanentReason(err); why == dispatcher.ReasonSchemaValidationFailed {
		s.invalid.Inc()
	} else if errors.As(err, &slow) && slow.Timeout() {
		s.timeouts.Inc()
	} else if word := reason.Of(err); word == reason.ConnectionFailed || word == reason.CertificateInvalid {
		s.network.Inc()
	}
}

// DeadLettered implements [dispatcher.Observer].
func (m *Metrics) DeadLettered(d dispatcher.DeadEvent) {
	m.vectors.dead.WithLabelValues(string(d.Reason), m.of(d.Topic).label).Inc()
}

// Expired implements [dispatcher.Observer].
func (m *Metrics) Expired(topic string, n int) { m.of(topic).expired.Add(float64(n)) }

// LeaseLost implements [dispatcher.Observer].
func (m *Metrics) LeaseLost(n int) { m.leaseLost.Add(float64(n)) }

// Refused implements [dispatcher.Observer].
func (m *Metrics) Refused(n int) { m.refused.Add(float64(n)) }

// ClaimRefused implements [dispatcher.Observer].
func (m *Metrics) ClaimRefused() { m.claimsRefused.Inc() }

// exemplar names the trace of an event whose producer sampled it, else nil. The delivery's span is in
// the same trace. A header that is anything else than a W3C traceparent is never shown.
func exemplar(e *dispatcher.Event) prometheus.Labels {
	const length, id, flags = len("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), 3, 53
	parent := e.Headers["traceparent"]
	if len(parent) < length || !sampled(parent[flags+1]) {
		return nil
	}
	trace, err := trace.TraceIDFromHex(parent[id : id+32])
	if err != nil {
		return nil
	}
	return prometheus.Labels{"trace_id": trace.String()}
}

// sampled is the last bit of a hex digit.
func sampled(digit byte) bool {
	switch digit {
	case '1', '3', '5', '7', '9', 'b', 'd', 'f':
		return true
	default:
		return false
	}
}

// exemplars is a histogram that takes exemplars: client_golang's all do.
func exemplars(o prometheus.Observer) prometheus.ExemplarObserver {
	return o.(prometheus.ExemplarObserver)
}
