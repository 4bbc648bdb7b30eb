package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/journal"
)

// WatchJournal registers the gauge of the journal. state returns nil until it was compared once.
func (m *Metrics) WatchJournal(state func() *journal.State) {
	m.registry.MustRegister(journalGauge(state))
}

var differences = describe("outbox_journal_differences", "Differences between the journal and the rows of the dispatcher's topics that changed within a day: those of the process's last whole pass, or of the one under way when that has more. Absent while the journal is off.")

type journalGauge func() *journal.State

// Describe implements [prometheus.Collector].
func (journalGauge) Describe(ch chan<- *prometheus.Desc) { ch <- differences }

// Collect implements [prometheus.Collector].
func (state journalGauge) Collect(ch chan<- prometheus.Metric) {
	if s := state(); s != nil && s.On {
		ch <- prometheus.MustNewConstMetric(differences, prometheus.GaugeValue, float64(s.Found))
	}
}
