package metrics_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/journal"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/metrics"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func scrape(t *testing.T, registry prometheus.Gatherer) string {
	t.Helper()
	response := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/", nil))
	return response.Body.String()
}

// CONTRACT: C-40, C-43, C-95
// REQUIREMENT: STORAGE-61, STORAGE-62, STORAGE-63, STORAGE-64
func TestNamesAndValues(t *testing.T) {
	registry, part := prometheus.NewRegistry(), 0.25
	m := metrics.New(registry, "default/orders", "shop", "kafka")
	m.Build("v1.2.3")
	m.Objective(time.Minute, 0.999)
	m.Watch(
		func() dispatcher.Snapshot {
			return dispatcher.Snapshot{
				InFlightRows: 3, InFlightBytes: 700, Breaker: dispatcher.BreakerRefusing,
				Source: dispatcher.LinkState{OK: true}, Schema: dispatcher.Schema{State: dispatcher.SchemaReady},
				PausedTopics: []dispatcher.PausedTopic{{Topic: "refunds", Breaker: dispatcher.BreakerUnreachable}},
				Gated:        []dispatcher.GatedTopic{{Topic: "orders", EventType: "order.placed"}},
				LimitedBy:    dispatcher.LimitedByDestination, Decisions: map[string]int{"refused": 2}, RatePart: &part,
				TopicLimits: []dispatcher.TopicLimit{{Topic: "orders", LimitedBy: dispatcher.LimitedByDestination, Concurrency: 41}},
			}
		},
		func() *dispatcher.Depth {
			now := time.UnixMilli(1_700_000_000_500)
			return &dispatcher.Depth{ObservedAt: now, Topics: []dispatcher.TopicDepth{{
				Topic: "orders", Pending: dispatcher.Count{N: 5}, Scheduled: dispatcher.Count{N: 6}, Retrying: dispatcher.Count{N: 4},
				Processing: dispatcher.Count{N: 7}, Dead: dispatcher.Count{N: 8}, OldestPending: now.Add(-90 * time.Second),
			}}, BlockedKeys: dispatcher.Count{N: 2}}
		},
		func() *dispatcher.OldestTransaction {
			return &dispatcher.OldestTransaction{Kind: dispatcher.HeldBySlot, Age: 1000*time.Second + 500*time.Millisecond}
		},
		func() *map[string]int64 { return &map[string]int64{"outbox_events": 8192} },
		func() int { return 0 })
	m.WatchJournal(func() *journal.State { return &journal.State{On: true, Found: 3} })
	m.WatchData(func() *dispatcher.Data {
		return &dispatcher.Data{
			Orphans:   dispatcher.Orphans{Unserved: dispatcher.Count{N: 11}, Abandoned: dispatcher.Count{N: 12}},
			Adoptions: []dispatcher.AdoptionRows{{Adoption: "orders", State: "waiting", N: 14}},
			Windows:   []dispatcher.Outcomes{{Window: 5 * time.Minute}, {Window: time.Hour, Delivered: 3, Failed: 1, Dead: dispatcher.Count{N: 13}}},
		}
	})
	e, again := &dispatcher.Event{Topic: "orders", Attempt: 1}, &dispatcher.Event{Topic: "orders", Attempt: 2}
	m.Claimed("orders", 9)
	m.Delivered(e, 2*time.Millisecond, 20*time.Millisecond)
	m.Delivered(again, time.Minute, 20*time.Millisecond)
	m.Acked(e, 3*time.Second)
	m.Failed(e, errors.New("status 500"), time.Millisecond, 4*time.Second)
	m.Failed(e, dispatcher.Unavailable(errors.New("refused")), time.Millisecond, 0)
	m.Failed(e, reason.With(reason.ConnectionFailed, errors.New("reset")), time.Millisecond, 0)
	m.Failed(e, fmt.Errorf("post: %w", context.DeadlineExceeded), time.Second, time.Second)
	m.Failed(e, dispatcher.Permanent(dispatcher.ReasonSchemaValidationFailed, errors.New("/total is missing")), time.Millisecond, 0)
	m.DeadLettered(dispatcher.DeadEvent{Topic: "orders", Reason: dispatcher.ReasonMaxRetriesExceeded})
	m.Expired("orders", 3)
	m.LeaseLost(2)

	text := scrape(t, registry)
	const labels, topic = `dispatcher="default/orders",outbox_namespace="shop",sink="kafka"`, `,topic="orders"`
	const before, after = `dispatcher="default/orders",`, `outbox_namespace="shop",sink="kafka"`
	for _, want := range []string{
		"outbox_build_info{" + labels + `,version="v1.2.3"} 1`,
		"outbox_objective_freshness_seconds{" + labels + "} 60",
		"outbox_objective_target_ratio{" + labels + "} 0.999",
		`outbox_limited_by{by="Destination",` + labels + "} 1",
		`outbox_limited_by{by="Concurrency",` + labels + "} 0",
		"outbox_rate_part{" + labels + "} 0.25",
		"outbox_concurrency_limit{" + labels + topic + "} 41",
		"outbox_events_expired_total{" + labels + topic + "} 3",
		"outbox_concurrency_decisions_total{" + before + `outbox_namespace="shop",reason="refused",sink="kafka"} 2`,
		"outbox_retrying_events{" + labels + topic + "} 4",
		"outbox_orphaned_events{" + before + `kind="unserved",` + after + "} 11",
		"outbox_journal_differences{" + labels + "} 3",
		`outbox_adoption_rows{adoption="orders",` + labels + `,state="waiting"} 14`,
		"outbox_orphaned_events{" + before + `kind="abandoned",` + after + "} 12",
		"outbox_delivery_success_ratio{" + labels + `,window="1h"} 0.75`,
		"outbox_dlq_recent_events{" + labels + `,window="5m"} 0`,
		"outbox_dlq_recent_events{" + labels + `,window="1h"} 13`,
		"outbox_events_claimed_total{" + labels + topic + "} 9",
		"outbox_events_published_total{" + labels + topic + "} 2",
		"outbox_events_delivered_total{" + labels + topic + "} 1",
		"outbox_events_failed_total{" + labels + topic + "} 5",
		"outbox_events_dlq_total{" + before + `outbox_namespace="shop",reason="max_retries_exceeded",sink="kafka"` + topic + "} 1",
		"outbox_validation_errors_total{" + labels + topic + "} 1",
		"outbox_network_errors_total{" + labels + topic + "} 2",
		"outbox_timeout_errors_total{" + labels + topic + "} 1",
		"outbox_lease_lost_total{" + labels + "} 2",
		"outbox_delivery_duration_seconds_count{" + before + `outbox_namespace="shop",outcome="confirmed",sink="kafka"` + topic + "} 2",
		"outbox_delivery_duration_seconds_count{" + before + `outbox_namespace="shop",outcome="failed",sink="kafka"` + topic + "} 5",
		"outbox_dispatch_latency_seconds_count{" + labels + topic + "} 1",
		"outbox_dispatch_latency_seconds_sum{" + labels + topic + "} 0.002",
		"outbox_claim_size_events_count{" + labels + topic + "} 1",
		"outbox_claim_size_events_sum{" + labels + topic + "} 9",
		"outbox_retry_delay_seconds_sum{" + labels + topic + "} 5",
		"outbox_end_to_end_latency_seconds_sum{" + labels + topic + "} 3",
		"outbox_pending_events_count{" + labels + topic + "} 5",
		"outbox_scheduled_events{" + labels + topic + "} 6",
		"outbox_processing_events{" + labels + topic + "} 7",
		"outbox_dlq_events_count{" + labels + topic + "} 8",
		"outbox_oldest_pending_age_seconds{" + labels + topic + "} 90",
		"outbox_backlog_observed_timestamp_seconds{" + labels + "} 1.7000000005e+09",
		"outbox_in_flight_events{" + labels + "} 3",
		"outbox_in_flight_bytes{" + labels + "} 700",
		"outbox_breaker_state{" + labels + `,state="Closed"} 0`,
		"outbox_breaker_state{" + labels + `,state="Refusing"} 1`,
		"outbox_topic_breaker_state{" + labels + `,state="Unreachable",topic="refunds"} 1`,
		"outbox_topic_breaker_state{" + labels + `,state="ConsumersNotVerified",topic="orders"} 1`,
		"outbox_blocked_keys{" + labels + "} 2",
		"outbox_oldest_transaction_age_seconds{" + before + `kind="ReplicationSlot",` + after + "} 1000.5",
		"outbox_oldest_transaction_age_seconds{" + before + `kind="Session",` + after + "} 0",
		"outbox_table_size_bytes{" + labels + `,table="outbox_events"} 8192`,
		"outbox_source_up{" + labels + "} 1",
		"outbox_schema_ready{" + labels + "} 1",
		"outbox_sink_up{" + labels + "} 0",
	} {
		need.That(t, strings.Contains(text, want+"\n"), "missing: %s", want)
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	need.OK(t, err)
	for _, p := range problems {
		if p.Metric != "outbox_pending_events_count" && p.Metric != "outbox_dlq_events_count" { // names that CONTRACT C-95 keeps
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

// Prometheus sees no increase in a series that begins with 1: what counts dead events and failures must be there before.
func TestCountersStartAtZero(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := metrics.New(registry, "orders", "shop", "kafka", "orders", "refunds")
	const labels = `dispatcher="orders",outbox_namespace="shop"`
	want := []string{"outbox_lease_lost_total{" + labels + `,sink="kafka"} 0`, "outbox_claims_refused_total{" + labels + `,sink="kafka"} 0`, "outbox_outcomes_refused_total{" + labels + `,sink="kafka"} 0`}
	topic := func(name string) {
		rest := `sink="kafka",topic="` + name + `"} 0`
		for _, counter := range []string{"claimed", "published", "delivered", "failed"} {
			want = append(want, "outbox_events_"+counter+"_total{"+labels+","+rest)
		}
		for _, kind := range []string{"validation", "network", "timeout"} {
			want = append(want, "outbox_"+kind+"_errors_total{"+labels+","+rest)
		}
		for _, reason := range []string{"max_retries_exceeded", "poison_message", "schema_validation_failed", "processing_timeout", "permanent_failure"} {
			want = append(want, "outbox_events_dlq_total{"+labels+`,reason="`+reason+`",`+rest)
		}
		for _, outcome := range []string{"confirmed", "failed"} {
			want = append(want, "outbox_delivery_duration_seconds_count{"+labels+`,outcome="`+outcome+`",`+rest)
		}
	}
	topic("orders")
	topic("refunds")
	m.Watch(func() dispatcher.Snapshot { return dispatcher.Snapshot{} },
		func() *dispatcher.Depth {
			return &dispatcher.Depth{Topics: []dispatcher.TopicDepth{{Topic: "found"}}}
		}, unknown, unweighed, none)
	scrape(t, registry) // finds a topic in the backlog
	topic("found")
	text := scrape(t, registry)
	for _, line := range want {
		need.That(t, strings.Contains(text, line+"\n"), "missing: %s", line)
	}
}

func TestBacklogIsAbsentBeforeTheFirstCount(t *testing.T) {
	registry := prometheus.NewRegistry()
	metrics.New(registry, "orders", "shop", "kafka").Watch(
		func() dispatcher.Snapshot { return dispatcher.Snapshot{} }, func() *dispatcher.Depth { return nil }, unknown, unweighed, none)
	text := scrape(t, registry)
	if strings.Contains(text, "outbox_pending_events_count") || strings.Contains(text, "outbox_oldest_transaction") || strings.Contains(text, "outbox_table_size") || !strings.Contains(text, "outbox_source_up") {
		t.Error(text)
	}
}

func unknown() *dispatcher.OldestTransaction { return nil }
func unweighed() *map[string]int64           { return nil }
func none() int                              { return 0 }

// An outage of minutes is seen in minutes: by native buckets where Prometheus keeps them, else by classic ones of factor two.
// CONTRACT: C-95
func TestHistogramsSeeAnOutage(t *testing.T) {
	registry := prometheus.NewRegistry()
	metrics.New(registry, "orders", "shop", "kafka").Acked(&dispatcher.Event{Topic: "orders"}, 2*time.Minute)
	families, err := registry.Gather()
	need.OK(t, err)
	for _, family := range families {
		if family.GetName() != "outbox_end_to_end_latency_seconds" {
			continue
		}
		h := family.GetMetric()[0].GetHistogram()
		need.That(t, h.GetSchema() == 3 && len(h.GetPositiveSpan()) == 1, "native buckets of schema %d in %v, want one of 3", h.GetSchema(), h.GetPositiveSpan())
		last := 60.0
		for _, bucket := range h.GetBucket() {
			if bound := bucket.GetUpperBound(); bound > 60 && bound <= 3600 {
				need.That(t, bound <= 2*last, "no bucket between %v and %v seconds", last, bound)
				last = bound
			}
		}
		return
	}
	t.Error("there is no such histogram")
}

// Topics come from producers: their number must not be that of the series. What is beyond the bound has the label _other,
// and the page says how many series there are at most.
func TestTopicsAreBounded(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	m := metrics.New(registry, "orders", "shop", "kafka")
	const topics = 3 * metrics.MaxTopics
	depth := &dispatcher.Depth{}
	var paused []dispatcher.PausedTopic
	var gated []dispatcher.GatedTopic
	var all sync.WaitGroup
	for i := range topics {
		topic := fmt.Sprint(i)
		depth.Topics = append(depth.Topics, dispatcher.TopicDepth{Topic: topic, Pending: dispatcher.Count{N: 1}})
		paused = append(paused, dispatcher.PausedTopic{Topic: topic, Breaker: dispatcher.BreakerRefusing})
		gated = append(gated, dispatcher.GatedTopic{Topic: topic})
		all.Go(func() {
			m.Claimed(topic, 1)
			m.Failed(&dispatcher.Event{Topic: topic}, errors.New("status 500"), time.Second, time.Second)
		})
	}
	all.Wait()
	m.Watch(func() dispatcher.Snapshot { return dispatcher.Snapshot{PausedTopics: paused, Gated: gated} }, func() *dispatcher.Depth { return depth }, unknown, unweighed, none)
	families, err := registry.Gather()
	need.OK(t, err)
	n, want := 0, map[string]int{
		"outbox_topic_breaker_state": 2 * (metrics.MaxTopics + 1), "outbox_events_claimed_total": metrics.MaxTopics + 1,
		"outbox_pending_events_count": metrics.MaxTopics + 1, "outbox_claim_size_events": metrics.MaxHistogramTopics + 1,
	}
	for _, family := range families {
		name, sum := family.GetName(), 0.
		for _, metric := range family.GetMetric() {
			n += series(metric)
			sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + metric.GetHistogram().GetSampleSum()
		}
		if got := len(family.GetMetric()); want[name] > 0 && got != want[name] {
			t.Errorf("%s has %d sets of labels, want %d", name, got, want[name])
		}
		_, counts := want[name]
		need.That(t, !counts || name == "outbox_topic_breaker_state" || sum == topics, "%s has the sum %v, want that of all topics, %d", name, sum, topics)
		delete(want, name)
	}
	need.That(t, len(want) == 0, "not seen: %v", want)
	need.That(t, n <= metrics.MaxSeries && n >= metrics.MaxSeries*9/10, "%d series, want at most %d and not much less", n, metrics.MaxSeries)
	text, err := os.ReadFile(page)
	said := fmt.Sprintf("at most %d,000 series", metrics.MaxSeries/1000)
	need.That(t, err == nil && strings.Contains(string(text), said), "%s does not say %q: %v", page, said, err)
	more := 0
	if n := testing.AllocsPerRun(100, func() { more++; m.Claimed(fmt.Sprint("more", more), 1) }); n > 2 {
		t.Errorf("a topic beyond the bound takes %v allocations, so it is kept", n)
	}
	t.Logf("%d series, %d bytes", n, len(scrape(t, registry)))
}

// series is how many Prometheus makes of a metric.
func series(m *dto.Metric) int {
	if h := m.GetHistogram(); h != nil {
		return len(h.GetBucket()) + 3 // +Inf, sum and count
	}
	return 1
}

// Goroutines that meet a new topic at once count it once: as many topics as there are labels all have their own.
func TestTopicIsCountedOnce(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := metrics.New(registry, "orders", "shop", "kafka")
	for i := range metrics.MaxTopics {
		start := make(chan struct{})
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				<-start
				m.Claimed(fmt.Sprint(i), 1)
			})
		}
		close(start)
		all.Wait()
	}
	text := scrape(t, registry)
	if other := `outbox_events_claimed_total{dispatcher="orders",outbox_namespace="shop",sink="kafka",topic="` + metrics.OtherTopics; strings.Contains(text, other) {
		t.Errorf("some of %d topics have no label of their own", metrics.MaxTopics)
	}
}

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
func TestExemplarsLeadToSampledTraces(t *testing.T) {
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
		need.That(t, strings.Contains(text, want), "missing: %s", want)
	}
	n := strings.Count(text, "trace_id")
	need.That(t, n == 4 && !t.Failed(), "%d exemplars, want 4:\n%s", n, text)
}

// No exemplar without a trace that was sampled, and nothing that a producer wrote is shown.
// CONTRACT: C-73
func TestUnsampledTracesHaveNoExemplar(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := metrics.New(registry, "orders", "shop", "kafka")
	for _, parent := range []string{
		"", "s3cr3t", "00-" + traceID + "-00f067aa0ba902b7-00", "00-" + traceID + "-00f067aa0ba902b7-0z",
		"00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01", "00-" + strings.Repeat("s3cr3t+/", 4) + "-00f067aa0ba902b7-01",
	} {
		m.Delivered(&dispatcher.Event{Topic: "orders", Attempt: 1, Headers: map[string]string{"traceparent": parent}}, time.Second, time.Second)
	}
	text := openMetrics(t, registry)
	need.That(t, !strings.Contains(text, "trace_id") && !strings.Contains(text, "s3cr3t"), "%v", text)
}

const page = "README.md"

var update = flag.Bool("update", false, "write the rows of the page")

// fixed are the names that dashboards and alerts rely on.
var fixed = []string{
	"outbox_events_published_total", "outbox_events_delivered_total", "outbox_events_failed_total", "outbox_events_dlq_total",
	"outbox_delivery_duration_seconds", "outbox_retry_delay_seconds", "outbox_end_to_end_latency_seconds",
	"outbox_validation_errors_total", "outbox_network_errors_total", "outbox_timeout_errors_total",
	"outbox_table_size_bytes", "outbox_pending_events_count", "outbox_dlq_events_count",
}

// rows returns the row of the page's table for each metric that the registry describes, by name.
func rows(t *testing.T, registry interface {
	prometheus.Gatherer
	prometheus.Collector
}) map[string]string {
	t.Helper()
	families, err := registry.Gather()
	need.OK(t, err)
	kinds := map[string]string{}
	for _, f := range families {
		kinds[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	described := make(chan *prometheus.Desc, 100)
	registry.Describe(described)
	close(described)
	all := map[string]string{}
	fields := regexp.MustCompile(`^Desc\{fqName: "(.*?)", help: "(.*?)", .*constLabels: \{.*\}, variableLabels: \{(.*)\}\}$`)
	for d := range described {
		found := fields.FindStringSubmatch(d.String())
		if found == nil {
			t.Fatalf("%s has another form than this test reads", d)
		}
		name, help, labels := found[1], found[2], strings.Split(found[3], ",")
		slices.Sort(labels)
		all[name] = fmt.Sprintf("| `%s` | %s | %s | %s |", name, kinds[name], strings.Join(labels, ", "), help)
	}
	return all
}

// The page for users has one row for each metric, with its labels and its help text, and names no other.
// CONTRACT: C-95
func TestReadme(t *testing.T) {
	registry := prometheus.NewPedanticRegistry() // refuses what is collected and not described
	m := metrics.New(registry, "orders", "shop", "kafka")
	m.Build("v1.2.3")
	m.Objective(time.Minute, 0.999)
	m.Watch(
		func() dispatcher.Snapshot {
			return dispatcher.Snapshot{TopicLimits: make([]dispatcher.TopicLimit, 1), RatePart: new(float64), Decisions: map[string]int{"gain": 1}, PausedTopics: []dispatcher.PausedTopic{{Topic: "orders", Breaker: dispatcher.BreakerRefusing}}}
		},
		func() *dispatcher.Depth { return &dispatcher.Depth{Topics: []dispatcher.TopicDepth{{Topic: "orders"}}} },
		func() *dispatcher.OldestTransaction { return &dispatcher.OldestTransaction{} },
		func() *map[string]int64 { return &map[string]int64{"outbox_events": 1} },
		func() int { return 0 })
	m.WatchData(func() *dispatcher.Data {
		return &dispatcher.Data{Windows: []dispatcher.Outcomes{{Window: time.Hour, Delivered: 1}}, Adoptions: make([]dispatcher.AdoptionRows, 1)}
	})
	m.WatchJournal(func() *journal.State { return &journal.State{On: true} })
	m.WatchRetention(func() *metrics.Retention { return &metrics.Retention{} })
	m.WatchNotifications(func() metrics.Notifications { return metrics.Notifications{Known: true} })
	m.Claimed("orders", 1) // makes the topic's series
	m.Failed(&dispatcher.Event{Topic: "orders"}, os.ErrClosed, time.Second, time.Second)
	m.DeadLettered(dispatcher.DeadEvent{Topic: "orders", Reason: dispatcher.ReasonPermanentFailure})
	text, err := os.ReadFile(page)
	need.OK(t, err)
	want := rows(t, registry)
	if *update {
		text = regexp.MustCompile("(?m)^\\| `(outbox_[a-z_]+)` \\|.*$").ReplaceAllFunc(text, func(row []byte) []byte {
			return []byte(cmp.Or(want[strings.Split(string(row), "`")[1]], string(row)))
		})
		need.OK(t, os.WriteFile(page, text, 0o600))
	}
	if len(want) < 30 {
		t.Fatalf("%d metrics are described, want all", len(want))
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !strings.Contains(string(text), want[name]+"\n") {
			t.Errorf("%s misses this row; put it where it belongs (-update writes the rows of metrics that have one):\n%s", page, want[name])
		}
	}
	need.Want(t, len(want), "%s has %d rows of metrics, want %d", len(regexp.MustCompile("(?m)^\\| `outbox_").FindAllString(string(text), -1)), page)
	for _, name := range fixed {
		need.That(t, want[name] != "", "%s is not there, and its name is fixed", name)
	}
	others := []string{"outbox_events", "outbox_dead_letters", "outbox_workers", "outbox_namespace"} // tables, and a label
	for _, name := range regexp.MustCompile(`\boutbox_[a-z_]+`).FindAllString(string(text), -1) {
		base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		need.That(t, want[name] != "" || want[base] != "" || slices.Contains(others, name), "%s names %s, which is not a metric", page, name)
	}
}
