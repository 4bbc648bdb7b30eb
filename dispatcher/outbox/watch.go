package outbox

import (
	"cmp"
	"context"
	"time"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/journal"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/metrics"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/monitor"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/notify"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/retention"
)

// Retention is how long rows stay (CONTRACT C-60). The zero value of a field means its default.
type Retention struct {
	// Delivered is how long a delivered row stays. Where Store.DeleteDelivered is set none stays, and this is 0.
	// Defaults to 7 days.
	Delivered time.Duration
	// DeadResolved is how long a dead row stays after its last dead letter was resolved. Defaults to 30 days.
	DeadResolved time.Duration
	// DeadUnresolved is how long an unresolved dead row stays. Defaults to forever.
	DeadUnresolved time.Duration
	// Own removes rows of the dispatcher's namespace and topics alone. Defaults to false: those of the whole tables, in
	// turns with other dispatchers of the database.
	Own bool
	// CheckEvery is how often a process checks whether the next run is due. Defaults to 30s.
	CheckEvery time.Duration
}

func (r Retention) withDefaults(deleteDelivered bool) Retention {
	if !deleteDelivered {
		r.Delivered = cmp.Or(r.Delivered, 7*24*time.Hour)
	}
	r.DeadResolved = cmp.Or(r.DeadResolved, 30*24*time.Hour)
	return r
}

// sweepOptions are the settings of the sweep, which goes slower while more events wait than a claim takes.
func (d *Dispatcher) sweepOptions() retention.Options {
	r := d.cfg.Retention
	opts := retention.Options{
		Schema: d.cfg.Store.Schema, Worker: d.cfg.Store.Worker, Logger: d.log, PollEvery: r.CheckEvery,
		Delivered: r.Delivered, DeadResolved: r.DeadResolved, DeadUnresolved: r.DeadUnresolved,
		Ready: d.usable,
	}
	if r.Own {
		opts.Name, opts.Namespace, opts.Topics = "dispatcher "+d.cfg.Store.Dispatcher, d.cfg.Store.Namespace, d.cfg.Topics
	}
	return opts
}

// watch makes the sweep, the notifier and the queries for metrics and status.
func (d *Dispatcher) watch(observer *metrics.Metrics) {
	ctx, end := context.WithCancel(context.Background())
	d.end = end
	batch := int64(cmp.Or(d.cfg.BatchSize, engineBatch))
	d.sources = monitor.Sources{
		Snapshot:          d.Snapshot,
		PerSecond:         d.outcomes.perSecond,
		Hour:              d.hour.Get,
		Backlog:           monitor.NewBacklog(ctx, d.store, d.cfg.Topics, d.cfg.OnDead == dispatcher.OnDeadBlock, d.log).Get,
		OldestTransaction: monitor.NewOldestTransaction(ctx, d.store.OldestTransaction, d.log).Get,
		Sharing:           monitor.NewSharing(ctx, func(ctx context.Context) ([]string, error) { return d.store.Sharing(ctx, d.info()) }, d.log).Get,
		Data:              monitor.NewData(ctx, func(ctx context.Context) (dispatcher.Data, error) { return d.store.Data(ctx, d.info()) }, d.log).Get,
		Journal:           monitor.NewJournal(ctx, journal.NewWatch(d.pool, journal.Options{Schema: d.cfg.Store.Schema, Namespace: d.cfg.Store.Namespace, Topics: d.cfg.Topics}).Look, d.log).Get,
		FileProblems:      d.cfg.FileProblems,
		DeadLetters:       d.cfg.DeadLetters,
	}
	sweep := d.sweepOptions()
	sweep.Removed = func(c retention.Counts) { observer.Removed(c.Delivered, c.Dead, c.DeadLetters, c.Expired, c.Withdrawn) }
	sweep.Busy = func() bool { return waiting(d.sources.Backlog()) >= batch }
	d.sweeper = retention.New(d.pool, sweep)
	d.watchRetention(ctx, observer)
	d.watchNotifications(ctx, observer)
	observer.Watch(d.sources.Snapshot, d.sources.Backlog, d.sources.OldestTransaction, monitor.NewSizes(ctx, d.store.Sizes, d.log).Get, func() int { return len(d.cfg.FileProblems()) })
	observer.WatchData(d.sources.Data)
	observer.WatchJournal(d.sources.Journal)
}

// engineBatch is the default of the engine's BatchSize.
const engineBatch = 500

// usable reports whether the outbox can be worked with.
func (d *Dispatcher) usable() bool {
	s := d.Snapshot()
	return s.Source.OK && s.Schema.State == dispatcher.SchemaReady
}

// waiting counts the rows that are due.
func waiting(depth *dispatcher.Depth) (n int64) {
	if depth != nil {
		for _, t := range depth.Topics {
			n += t.Pending.N
		}
	}
	return n
}

// watchRetention adds the sweep to the status and the metrics.
func (d *Dispatcher) watchRetention(ctx context.Context, observer *metrics.Metrics) {
	d.sources.Retention = monitor.NewRetention(ctx, d.sweeper.State, d.log).Get
	d.sources.RetentionProblem = d.sweeper.Problem
	observer.WatchRetention(func() *metrics.Retention {
		s := d.sources.Retention()
		if s == nil {
			return nil
		}
		return &metrics.Retention{
			Running: s.Running, Progress: float64(s.Position) / float64(max(s.Pages, 1)), LastRun: orZero(s.Ended), NextRun: orZero(s.Next),
			Took: time.Duration(s.Seconds * float64(time.Second)), Failed: d.sweeper.Problem() != "",
		}
	})
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// watchNotifications makes the notifier, and adds it to the status and the metrics. Without an address it does nothing.
func (d *Dispatcher) watchNotifications(ctx context.Context, observer *metrics.Metrics) {
	to := d.cfg.Notify
	if d.notify = func(context.Context) {}; to == nil {
		return
	}
	n := notify.New(d.pool, to, notify.Options{
		Schema: d.cfg.Store.Schema, Namespace: d.cfg.Store.Namespace, Topics: d.cfg.Topics, Dispatcher: d.cfg.Store.Dispatcher,
		Logger: d.log, Ready: d.usable,
	})
	waiting := monitor.NewNotifications(ctx, n.Waiting, d.log)
	d.sources.Notifications = func() *status.Notifications {
		counts := n.Counts()
		out := &status.Notifications{Sent: counts.Sent, Failed: counts.Failed, GivenUp: counts.GivenUp, Message: n.Problem()}
		if w := waiting.Get(); w != nil {
			out.Waiting, out.Oldest = w.DeadLetters, w.Oldest
		}
		return out
	}
	observer.WatchNotifications(func() metrics.Notifications {
		counts, w := n.Counts(), waiting.Get()
		out := metrics.Notifications{Sent: counts.Sent, Failed: counts.Failed, GivenUp: counts.GivenUp, Known: w != nil}
		if w != nil {
			out.Waiting, out.OldestSeconds = w.DeadLetters, w.Seconds
		}
		return out
	})
	d.notify = func(ctx context.Context) {
		n.Run(ctx)
		_ = to.Close(context.WithoutCancel(ctx)) // only idle connections are left
	}
}
