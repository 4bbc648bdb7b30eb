package metrics_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/metrics"
)

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
	if err != nil {
		t.Fatal(err)
	}
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
		if _, counts := want[name]; counts && name != "outbox_topic_breaker_state" && sum != topics {
			t.Errorf("%s has the sum %v, want that of all topics, %d", name, sum, topics)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("not seen: %v", want)
	}
	if n > metrics.MaxSeries || n < metrics.MaxSeries*9/10 {
		t.Errorf("%d series, want at most %d and not much less", n, metrics.MaxSeries)
	}
	text, err := os.ReadFile(page)
	if said := fmt.Sprintf("at most %d,000 series", metrics.MaxSeries/1000); err != nil || !strings.Contains(string(text), said) {
		t.Errorf("%s does not say %q: %v", page, said, err)
	}
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
