package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/journal"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/metrics"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
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
				Processing: dispatcher.Count{N: 7}, Dead: dispatcher.Count{N: 8}, OldestPending: now.Add(-time.Hour), DueSince: now.Add(-90 * time.Second),
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
			Orphans: dispatcher.Orphans{Unserved: dispatcher.Count{N: 11}, Abandoned: dispatcher.Count{N: 12}},
			Windows: []dispatcher.Outcomes{{Window: 5 * time.Minute}, {Window: time.Hour, Delivered: 3, Failed: 1, Dead: dispatcher.Count{N: 13}}},
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
	m.LeaseLost(2)

	text := scrape(t, registry)
	const labels, topic = `dispatcher="default/orders",outbox_namespace="shop",sink="kafka"`, `,topic="orders"`
	const before, after = `dispatcher="default/orders",`, `outbox_namespace="shop",sink="kafka"`
	for _, want := range []string{
		"outbox_build_info{" + labels + `,version="v1.2.3"} 1`,
		`outbox_limited_by{by="Destination",` + labels + "} 1",
		`outbox_limited_by{by="Concurrency",` + labels + "} 0",
		"outbox_rate_part{" + labels + "} 0.25",
		"outbox_concurrency_limit{" + labels + topic + "} 41",
		"outbox_concurrency_decisions_total{" + before + `outbox_namespace="shop",reason="refused",sink="kafka"} 2`,
		"outbox_retrying_events{" + labels + topic + "} 4",
		"outbox_orphaned_events{" + before + `kind="unserved",` + after + "} 11",
		"outbox_journal_differences{" + labels + "} 3",
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
		if !strings.Contains(text, want+"\n") {
			t.Errorf("missing: %s", want)
		}
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
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
	want := []string{"outbox_lease_lost_total{" + labels + `,sink="kafka"} 0`, "outbox_outcomes_refused_total{" + labels + `,sink="kafka"} 0`}
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
		if !strings.Contains(text, line+"\n") {
			t.Errorf("missing: %s", line)
		}
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
