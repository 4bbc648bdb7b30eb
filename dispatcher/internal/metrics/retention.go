package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// removedKinds are the values of the label kind of outbox_retention_removed_total.
var removedKinds = []string{"delivered", "dead", "dead_letters", "expired"}

// Removed counts what this process has removed after its retention: delivered rows, dead ones, dead letters, and
// dead letters that were resolved as expired.
func (m *Metrics) Removed(delivered, dead, deadLetters, expired int64) {
	for i, n := range []int64{delivered, dead, deadLetters, expired} {
		m.removed.WithLabelValues(removedKinds[i]).Add(float64(n))
	}
}

// Retention is how far the sweep is that removes rows after their retention.
type Retention struct {
	// Running is true while a run is under way, and Progress the part of the table that it has read, from 0 to 1.
	Running  bool
	Progress float64
	// LastRun is when the last whole run ended, zero before the first, and Took how long it took. NextRun is when
	// the next one is due.
	LastRun, NextRun time.Time
	Took             time.Duration
	// Failed is true when this process's last check failed, or its last run, and none has ended since.
	Failed bool
}

// WatchRetention registers the gauges of retention. state returns nil until it is known.
func (m *Metrics) WatchRetention(state func() *Retention) {
	m.registry.MustRegister(retentionGauges(state))
}

var (
	sweepProgress = describe("outbox_retention_progress_ratio", "The part of the events' table that the run under way has read, from 0 to 1. 0 when none is.")
	sweepLast     = describe("outbox_retention_last_run_timestamp_seconds", "When the last whole run ended, in whatever process, on the database's clock. 0 before the first.")
	sweepNext     = describe("outbox_retention_next_run_timestamp_seconds", "When the next run is due, on the database's clock. 0 before the first.")
	sweepTook     = describe("outbox_retention_run_duration_seconds", "How long the last whole run took.")
	sweepFailed   = describe("outbox_retention_failed", "1 when this process's last check of whether a run is due failed, or its last run failed and none has ended since, else 0.")
)

type retentionGauges func() *Retention

// Describe implements [prometheus.Collector].
func (retentionGauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{sweepProgress, sweepLast, sweepNext, sweepTook, sweepFailed} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (state retentionGauges) Collect(ch chan<- prometheus.Metric) {
	s := state()
	if s == nil {
		return
	}
	for d, value := range map[*prometheus.Desc]float64{
		sweepProgress: number(s.Running) * s.Progress, sweepLast: seconds(s.LastRun), sweepNext: seconds(s.NextRun),
		sweepTook: s.Took.Seconds(), sweepFailed: number(s.Failed),
	} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value)
	}
}

// seconds is a time as Prometheus has it.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
