package metrics_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/journal"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/metrics"
)

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
	if err != nil {
		t.Fatal(err)
	}
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
	m.Watch(
		func() dispatcher.Snapshot {
			return dispatcher.Snapshot{TopicLimits: make([]dispatcher.TopicLimit, 1), RatePart: new(float64), Decisions: map[string]int{"gain": 1}, PausedTopics: []dispatcher.PausedTopic{{Topic: "orders", Breaker: dispatcher.BreakerRefusing}}}
		},
		func() *dispatcher.Depth { return &dispatcher.Depth{Topics: []dispatcher.TopicDepth{{Topic: "orders"}}} },
		func() *dispatcher.OldestTransaction { return &dispatcher.OldestTransaction{} },
		func() *map[string]int64 { return &map[string]int64{"outbox_events": 1} },
		func() int { return 0 })
	m.WatchData(func() *dispatcher.Data {
		return &dispatcher.Data{Windows: []dispatcher.Outcomes{{Window: time.Hour, Delivered: 1}}}
	})
	m.WatchJournal(func() *journal.State { return &journal.State{On: true} })
	m.WatchRetention(func() *metrics.Retention { return &metrics.Retention{} })
	m.WatchNotifications(func() metrics.Notifications { return metrics.Notifications{Known: true} })
	m.Claimed("orders", 1) // makes the topic's series
	m.Failed(&dispatcher.Event{Topic: "orders"}, os.ErrClosed, time.Second, time.Second)
	m.DeadLettered(dispatcher.DeadEvent{Topic: "orders", Reason: dispatcher.ReasonPermanentFailure})
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := rows(t, registry)
	if *update {
		text = regexp.MustCompile("(?m)^\\| `(outbox_[a-z_]+)` \\|.*$").ReplaceAllFunc(text, func(row []byte) []byte {
			return []byte(cmp.Or(want[strings.Split(string(row), "`")[1]], string(row)))
		})
		if err := os.WriteFile(page, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if len(want) < 30 {
		t.Fatalf("%d metrics are described, want all", len(want))
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !strings.Contains(string(text), want[name]+"\n") {
			t.Errorf("%s misses this row; put it where it belongs (-update writes the rows of metrics that have one):\n%s", page, want[name])
		}
	}
	if n := len(regexp.MustCompile("(?m)^\\| `outbox_").FindAllString(string(text), -1)); n != len(want) {
		t.Errorf("%s has %d rows of metrics, want %d", page, n, len(want))
	}
	for _, name := range fixed {
		if want[name] == "" {
			t.Errorf("%s is not there, and its name is fixed", name)
		}
	}
	others := []string{"outbox_events", "outbox_dead_letters", "outbox_workers", "outbox_namespace"} // tables, and a label
	for _, name := range regexp.MustCompile(`\boutbox_[a-z_]+`).FindAllString(string(text), -1) {
		base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		if want[name] == "" && want[base] == "" && !slices.Contains(others, name) {
			t.Errorf("%s names %s, which is not a metric", page, name)
		}
	}
}
