package cli

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/metrics"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/monitor"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/retention"
)

// sweepOptions are the file's settings for the sweep that removes rows after their retention.
func sweepOptions(cfg spec.Config, worker uuid.UUID) retention.Options {
	r := cfg.Retention
	opts := retention.Options{
		Schema: cfg.Database.Schema, Worker: worker,
		Delivered: r.Delivered.D(), DeadResolved: r.DeadResolved.D(), DeadUnresolved: r.DeadUnresolved.D(),
	}
	if r.Scope == spec.ScopeDispatcher {
		opts.Name, opts.Namespace, opts.Topics = "dispatcher "+cfg.Name, cfg.Namespace, cfg.Topics
	}
	return opts
}

// newSweeper makes the sweep, which goes slower while more events wait than a claim takes.
func (e *process) newSweeper(cfg spec.Config, backlog func() *dispatcher.Depth, observer *metrics.Metrics) *retention.Sweeper {
	opts := sweepOptions(cfg, e.worker)
	opts.Logger = e.log
	opts.Removed = func(c retention.Counts) { observer.Removed(c.Delivered, c.Dead, c.DeadLetters, c.Expired) }
	opts.Ready = e.usable
	opts.Busy = func() bool { return waiting(backlog()) >= int64(cfg.Delivery.BatchSize) }
	return retention.New(e.pool, opts)
}

// usable reports whether the outbox can be worked with.
func (e *process) usable() bool {
	s := e.Snapshot()
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
func (e *process) watchRetention(ctx context.Context, sweeper *retention.Sweeper, sources *monitor.Sources, observer *metrics.Metrics) {
	sources.Retention = monitor.NewRetention(ctx, sweeper.State, e.log).Get
	sources.RetentionProblem = sweeper.Problem
	observer.WatchRetention(func() *metrics.Retention {
		s := sources.Retention()
		if s == nil {
			return nil
		}
		return &metrics.Retention{
			Running: s.Running, Progress: float64(s.Position) / float64(max(s.Pages, 1)), LastRun: orZero(s.Ended), NextRun: orZero(s.Next),
			Took: time.Duration(s.Seconds * float64(time.Second)), Failed: sweeper.Problem() != "",
		}
	})
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}
