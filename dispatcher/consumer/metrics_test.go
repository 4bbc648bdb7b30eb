package consumer_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outbox-operator/outbox-operator/dispatcher/consumer"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Events processed by result, duplicates skipped, latency, and the distribution of retries; of several
// consumers in one process, and 0 from the start.
//
// CONTRACT: C-80
// REQUIREMENT: RULE-010-041
func TestMetricsCountResultsDuplicatesAndRetries(t *testing.T) {
	each(t, func(t *testing.T, _ pgtest.DB, newSide func(consumer.Options) side) {
		registry := prometheus.NewRegistry()
		metrics := consumer.NewMetrics(registry)
		billing := newSide(consumer.Options{Metrics: metrics, Fence: true})
		newSide(consumer.Options{ID: "mail", Metrics: metrics})
		e := newEvent()
		deliver := func(token int64, attempt int, effect func(execer) error) {
			defer func() { _ = recover() }()
			again := *e
			again.FencingToken, again.Attempt = token, attempt
			_, _ = billing.handle(t.Context(), &again, effect)
		}
		deliver(1, 1, func(execer) error { return errEffect })
		deliver(2, 2, func(execer) error { panic("no") })
		deliver(1, 1, effect(e))  // older: neither processed nor a duplicate
		deliver(4, 20, effect(e)) // 19 retries
		deliver(4, 20, effect(e))
		const want = `
# HELP outbox_consumer_duplicates_skipped_total Deliveries of events that were handled before.
# TYPE outbox_consumer_duplicates_skipped_total counter
outbox_consumer_duplicates_skipped_total{consumer_id="billing"} 1
outbox_consumer_duplicates_skipped_total{consumer_id="mail"} 0
# HELP outbox_consumer_events_processed_total Deliveries that ran their effect or failed, by result: success or failure.
# TYPE outbox_consumer_events_processed_total counter
outbox_consumer_events_processed_total{consumer_id="billing",result="failure"} 2
outbox_consumer_events_processed_total{consumer_id="billing",result="success"} 1
outbox_consumer_events_processed_total{consumer_id="mail",result="failure"} 0
outbox_consumer_events_processed_total{consumer_id="mail",result="success"} 0
# HELP outbox_consumer_retry_count How many deliveries of the event came before this one.
# TYPE outbox_consumer_retry_count histogram
outbox_consumer_retry_count_bucket{consumer_id="billing",le="0"} 2
outbox_consumer_retry_count_bucket{consumer_id="billing",le="1"} 3
outbox_consumer_retry_count_bucket{consumer_id="billing",le="2"} 3
outbox_consumer_retry_count_bucket{consumer_id="billing",le="3"} 3
outbox_consumer_retry_count_bucket{consumer_id="billing",le="5"} 3
outbox_consumer_retry_count_bucket{consumer_id="billing",le="8"} 3
outbox_consumer_retry_count_bucket{consumer_id="billing",le="12"} 3
outbox_consumer_retry_count_bucket{consumer_id="billing",le="19"} 5
outbox_consumer_retry_count_bucket{consumer_id="billing",le="50"} 5
outbox_consumer_retry_count_bucket{consumer_id="billing",le="100"} 5
outbox_consumer_retry_count_bucket{consumer_id="billing",le="+Inf"} 5
outbox_consumer_retry_count_sum{consumer_id="billing"} 39
outbox_consumer_retry_count_count{consumer_id="billing"} 5
`
		check(t, testutil.GatherAndCompare(registry, strings.NewReader(want),
			"outbox_consumer_duplicates_skipped_total", "outbox_consumer_events_processed_total", "outbox_consumer_retry_count"))
		all, err := registry.Gather()
		check(t, err)
		for _, family := range all {
			if family.GetName() == "outbox_consumer_processing_latency_seconds" {
				if n := family.GetMetric()[0].GetHistogram().GetSampleCount(); n != 3 {
					t.Errorf("%d latencies of 3 deliveries that were processed", n)
				}
				return
			}
		}
		t.Error("no latency")
	})
}
