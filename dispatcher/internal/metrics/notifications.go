package metrics

import "github.com/prometheus/client_golang/prometheus"

// Notifications of dead events to an address.
type Notifications struct {
	// Sent, Failed and GivenUp are counts of this process.
	Sent, Failed, GivenUp int64
	// Known is true when the database has responded once. Then Waiting are those of all processes that are not sent yet, and
	// OldestSeconds is the age of the first of these.
	Known         bool
	Waiting       int64
	OldestSeconds float64
}

// WatchNotifications registers the metrics of notifications, for a dispatcher that has an address.
func (m *Metrics) WatchNotifications(state func() Notifications) {
	m.registry.MustRegister(notifications(state))
}

var (
	notified        = describe("outbox_dlq_notifications_total", "Notifications of dead events that this process handled, by outcome: sent ones were taken by the address, failed attempts were not, given_up ones were not taken within a day.", "outcome")
	notifyWaiting   = describe("outbox_dlq_notifications_waiting", "Dead events of the dispatcher's topics of which the address is not notified yet. There may be more above 10,000.")
	notifyOldestAge = describe("outbox_dlq_notifications_oldest_age_seconds", "How long the first event of which the address is not notified yet has been dead. 0 for none.")
)

type notifications func() Notifications

// Describe implements [prometheus.Collector].
func (notifications) Describe(ch chan<- *prometheus.Desc) {
	ch <- notified
	ch <- notifyWaiting
	ch <- notifyOldestAge
}

// Collect implements [prometheus.Collector].
func (state notifications) Collect(ch chan<- prometheus.Metric) {
	n := state()
	for outcome, count := range map[string]int64{"sent": n.Sent, "failed": n.Failed, "given_up": n.GivenUp} {
		ch <- prometheus.MustNewConstMetric(notified, prometheus.CounterValue, float64(count), outcome)
	}
	if n.Known {
		ch <- prometheus.MustNewConstMetric(notifyWaiting, prometheus.GaugeValue, float64(n.Waiting))
		ch <- prometheus.MustNewConstMetric(notifyOldestAge, prometheus.GaugeValue, n.OldestSeconds)
	}
}
