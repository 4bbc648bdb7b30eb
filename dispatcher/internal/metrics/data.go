package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// WatchData registers the gauges of the outbox's data. data returns nil until they were looked at once.
func (m *Metrics) WatchData(data func() *dispatcher.Data) {
	m.registry.MustRegister(dataGauges(data))
}

var (
	orphaned     = describe("outbox_orphaned_events", "Due rows of the whole database, whatever their namespace, that no worker has served for a minute at least, by kind: unserved ones are of topics that no dispatcher serves, abandoned ones are leased to a worker that is gone. Of each topic a bounded number of rows is counted.", "kind")
	successRatio = describe("outbox_delivery_success_ratio", "The part of the dispatcher's attempts in a window that delivered their event, from 0 to 1, in all of its processes that run. Absent when there was none.", "window")
	deadLately   = describe("outbox_dlq_recent_events", "Events of the dispatcher's topics that became dead in a window. There may be more above 10,000.", "window")
)

type dataGauges func() *dispatcher.Data

// Describe implements [prometheus.Collector].
func (dataGauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{orphaned, successRatio, deadLately} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (data dataGauges) Collect(ch chan<- prometheus.Metric) {
	d := data()
	if d == nil {
		return
	}
	gauge := func(d *prometheus.Desc, value float64, label string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, label)
	}
	gauge(orphaned, float64(d.Orphans.Unserved.N), "unserved")
	gauge(orphaned, float64(d.Orphans.Abandoned.N), "abandoned")
	for _, of := range d.Windows {
		window := of.Name()
		gauge(deadLately, float64(of.Dead.N), window)
		if rate, known := of.SuccessRate(); known {
			gauge(successRatio, rate, window)
		}
	}
}
