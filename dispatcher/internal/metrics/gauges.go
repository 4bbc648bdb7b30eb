package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/journal"
)

// Watch registers the gauges: what the dispatcher knows of itself, the backlog as it was counted
// last, what holds vacuum back, and the bytes of each table, which are nil until they are known; and how many files
// cannot be used as they are now.
func (m *Metrics) Watch(snapshot func() dispatcher.Snapshot, backlog func() *dispatcher.Depth, oldest func() *dispatcher.OldestTransaction, sizes func() *map[string]int64, files func() int) {
	m.registry.MustRegister(&gauges{m, snapshot, backlog, oldest, sizes, files})
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	pending     = describe("outbox_pending_events_count", "Rows that wait: due now, or for a retry. An estimate above 10,000.", "topic")
	scheduled   = describe("outbox_scheduled_events", "Rows that their producers delayed, and that were never due. An estimate above 10,000.", "topic")
	retrying    = describe("outbox_retrying_events", "Pending rows that wait for a retry after a failure. An estimate above 10,000.", "topic")
	processing  = describe("outbox_processing_events", "Rows leased by some dispatcher. An estimate above 10,000.", "topic")
	dead        = describe("outbox_dlq_events_count", "Dead rows with an open dead letter. An estimate above 10,000.", "topic")
	oldest      = describe("outbox_oldest_pending_age_seconds", "For how long the event that has waited for longest has waited since it was due first, when it was counted: pending, waiting for a retry or leased. A delay that its producer set comes before. 0 for none.", "topic")
	blockedKeys = describe("outbox_blocked_keys", "Keys whose rows wait behind an open dead letter, with onDead Block.")
	observedAt  = describe("outbox_backlog_observed_timestamp_seconds", "When the backlog was counted, on the database's clock.")
	inFlight    = describe("outbox_in_flight_events", "Rows that this process has claimed and not yet written back.")
	inFlightB   = describe("outbox_in_flight_bytes", "Bytes of the events in flight, payloads and headers, and of those that stuck calls keep.")
	stuckCalls  = describe("outbox_stuck_calls", "Calls of the sink that do not return although delivery.timeout is over.")
	paused      = describe("outbox_paused", "1 while nothing is claimed because the state is Paused, else 0.")
	unusable    = describe("outbox_unusable_files", "Files that are read again while the process runs, and cannot be used as they are now: what they said before holds on.")
	breaker     = describe("outbox_breaker_state", "1 for the state that the breaker is in: Closed, Unreachable or Refusing.", "state")
	topicPaused = describe("outbox_topic_breaker_state", "1 for a topic that is paused while others are delivered, by the state that its breaker is in: Unreachable or Refusing; or ConsumersNotVerified, for the type of its next event. Other topics are not listed.", "topic", "state")
	oldestTx    = describe("outbox_oldest_transaction_age_seconds", "Age of what has kept vacuum from removing rows for longest, when it was looked for, by kind: Session, PreparedTransaction, ReplicationSlot or Standby. 0 for the other kinds.", "kind")
	tableSize   = describe("outbox_table_size_bytes", "What a table takes on disk, with its indexes, when it was looked at.", "table")
	sourceUp    = describe("outbox_source_up", "1 when the database responded last time, else 0.")
	schemaReady = describe("outbox_schema_ready", "1 when the outbox schema is one that this dispatcher works with, else 0.")
	limitedBy   = describe("outbox_limited_by", "1 for what keeps this process from delivering more: Concurrency, Database, Rate, Destination, Order, Consumer, or Idle when there is nothing to do.", "by")
	callLimit   = describe("outbox_concurrency_limit", "How many calls of the sink a topic may have at once in this process. Only topics that something limits, eight at most.", "topic")
	ratePart    = describe("outbox_rate_part", "The part of the rate limits that this process may use now, from 0 to 1. Only with rateLimit or topicRateLimits.")
	decided     = describe("outbox_concurrency_decisions_total", "Changes of these limits with concurrency Auto, by reason: gain, no_gain, probe, spare, loss, slower, refused, recovered or bound.", "reason")
	sinkUp      = describe("outbox_sink_up", "1 when the destination took events, or responded, last time, else 0.")
)

var limits = []dispatcher.LimitedBy{
	dispatcher.LimitedByConcurrency, dispatcher.LimitedByDatabase, dispatcher.LimitedByRate, dispatcher.LimitedByDestination,
	dispatcher.LimitedByOrder, dispatcher.LimitedByConsumer, dispatcher.LimitedByIdle,
}

type gauges struct {
	metrics  *Metrics
	snapshot func() dispatcher.Snapshot
	backlog  func() *dispatcher.Depth
	oldest   func() *dispatcher.OldestTransaction
	sizes    func() *map[string]int64
	files    func() int
}

// Describe implements [prometheus.Collector].
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{pending, scheduled, retrying, processing, dead, oldest, blockedKeys, observedAt, inFlight, inFlightB, stuckCalls, paused, unusable, breaker, topicPaused, oldestTx, tableSize, sourceUp, schemaReady, sinkUp, limitedBy, callLimit, ratePart, decided} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	s := g.snapshot()
	gauge(inFlight, float64(s.InFlightRows))
	gauge(inFlightB, float64(s.InFlightBytes))
	gauge(stuckCalls, float64(s.StuckCalls))
	gauge(paused, number(s.Paused))
	gauge(unusable, float64(g.files()))
	for _, state := range []dispatcher.BreakerState{dispatcher.BreakerClosed, dispatcher.BreakerUnreachable, dispatcher.BreakerRefusing} {
		gauge(breaker, number(s.Breaker == state), string(state))
	}
	pausedTopics := map[[2]string]bool{} // topics may share a label
	for _, t := range s.PausedTopics {
		pausedTopics[[2]string{g.metrics.of(t.Topic).label, string(t.Breaker)}] = true
	}
	for _, t := range s.Gated {
		pausedTopics[[2]string{g.metrics.of(t.Topic).label, "ConsumersNotVerified"}] = true
	}
	for labels := range pausedTopics {
		gauge(topicPaused, 1, labels[:]...)
	}
	gauge(sourceUp, number(s.Source.OK))
	gauge(schemaReady, number(s.Schema.State == dispatcher.SchemaReady))
	gauge(sinkUp, number(s.Sink.OK))

	for _, by := range limits {
		gauge(limitedBy, number(s.LimitedBy == by), string(by))
	}
	if s.RatePart != nil {
		gauge(ratePart, *s.RatePart)
	}
	calls := map[string]int{}
	for _, t := range s.TopicLimits {
		label := g.metrics.of(t.Topic).label
		calls[label] = max(calls[label], t.Concurrency)
	}
	for label, n := range calls {
		gauge(callLimit, float64(n), label)
	}
	for reason, n := range s.Decisions {
		ch <- prometheus.MustNewConstMetric(decided, prometheus.CounterValue, float64(n), reason)
	}

	if tx := g.oldest(); tx != nil {
		for _, kind := range []dispatcher.HolderKind{dispatcher.HeldBySession, dispatcher.HeldByPrepared, dispatcher.HeldBySlot, dispatcher.HeldByStandby} {
			gauge(oldestTx, number(tx.Kind == kind)*tx.Age.Seconds(), string(kind))
		}
	}
	if sizes := g.sizes(); sizes != nil {
		for table, bytes := range *sizes {
			gauge(tableSize, float64(bytes), table)
		}
	}
	depth := g.backlog()
	if depth == nil {
		return
	}
	gauge(blockedKeys, float64(depth.BlockedKeys.N))
	gauge(observedAt, float64(depth.ObservedAt.UnixMilli())/1000)
	for label, t := range g.byLabel(depth) {
		gauge(pending, t.pending, label)
		gauge(scheduled, t.scheduled, label)
		gauge(retrying, t.retrying, label)
		gauge(processing, t.processing, label)
		gauge(dead, t.dead, label)
		gauge(oldest, t.oldest, label)
	}
}

type counts struct{ pending, scheduled, retrying, processing, dead, oldest float64 }

// byLabel puts together the topics that share a label.
func (g *gauges) byLabel(depth *dispatcher.Depth) map[string]counts {
	all := map[string]counts{}
	for _, t := range depth.Topics {
		label := g.metrics.of(t.Topic).label
		c := all[label]
		c.pending += float64(t.Pending.N)
		c.scheduled += float64(t.Scheduled.N)
		c.retrying += float64(t.Retrying.N)
		c.processing += float64(t.Processing.N)
		c.dead += float64(t.Dead.N)
		if !t.OldestPending.IsZero() {
			c.oldest = max(c.oldest, depth.ObservedAt.Sub(t.OldestPending).Seconds())
		}
		all[label] = c
	}
	return all
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// WatchData registers the gauges of the outbox's data. data returns nil until they were looked at once.
func (m *Metrics) WatchData(data func() *dispatcher.Data) {
	m.registry.MustRegister(dataGauges(data))
}

var (
	orphaned     = describe("outbox_orphaned_events", "Due rows of the whole database, whatever their namespace, that no worker has served for a minute at least, by kind: unserved ones are of topics that no dispatcher serves, abandoned ones are leased to a worker that is gone. Of each topic a bounded number of rows is counted.", "kind")
	successRatio = describe("outbox_delivery_success_ratio", "The part of the dispatcher's attempts in a window that delivered their event, from 0 to 1, in all of its processes that run. Absent when there was none.", "window")
	adopted      = describe("outbox_adoption_rows", "Rows of a table that is adopted and live which have no event, by state: refused by the outbox, missing a note, waiting in the table as open. All are 0 when all is well. -1: the table cannot be counted, as dispatcher adopt status says.", "adoption", "state")
	deadLately   = describe("outbox_dlq_recent_events", "Events of the dispatcher's topics that became dead in a window. There may be more above 10,000.", "window")
)

type dataGauges func() *dispatcher.Data

// Describe implements [prometheus.Collector].
func (dataGauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{orphaned, successRatio, deadLately, adopted} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (data dataGauges) Collect(ch chan<- prometheus.Metric) {
	d := data()
	if d == nil {
		return
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for _, rows := range d.Adoptions {
		gauge(adopted, float64(rows.N), rows.Adoption, rows.State)
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

// removedKinds are the values of the label kind of outbox_retention_removed_total.
var removedKinds = []string{"delivered", "dead", "dead_letters", "expired", "withdrawn"}

// Removed counts what this process has removed after its retention: delivered rows, dead ones, dead letters,
// dead letters that were resolved as expired, and withdrawn rows.
func (m *Metrics) Removed(delivered, dead, deadLetters, expired, withdrawn int64) {
	for i, n := range []int64{delivered, dead, deadLetters, expired, withdrawn} {
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
