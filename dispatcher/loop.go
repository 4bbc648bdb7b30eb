package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	// minIdle is the first wait when no more rows are due. It doubles up to PollInterval.
	minIdle = 2 * time.Millisecond
	// checkEvery is how often the schema is compared (somebody may migrate it), and the longest that
	// the loop sleeps when it waits to be told.
	checkEvery = 5 * time.Second
	// listEvery is how often topics are listed, when PollInterval is not shorter.
	listEvery = time.Second
	// probeTimeout bounds a probe of the sink.
	probeTimeout = 10 * time.Second
)

// pace is when the claim loop looks next.
type pace struct {
	idle       time.Duration // the last wait for rows to become due
	comparedAt time.Time     // when the schema was compared last
	retryAt    time.Time     // when the database is asked again after a failure
	retries    ramp
}

func newPace() pace { return pace{retries: ramp{100 * time.Millisecond, 5 * time.Second, 0}} }

// claimLoop claims until ctx ends. Nothing that the database or the sink does ends it.
func (r *run) claimLoop(ctx context.Context) {
	for ctx.Err() == nil {
		next := time.Now().Add(r.look(ctx))
		for told := false; !told && ctx.Err() == nil && time.Now().Before(next); {
			r.health.alive()
			told = pause(min(time.Until(next), checkEvery), r.wake, ctx.Done())
		}
		r.health.alive()
	}
}

// look makes sure of both ends and claims what there is room for. It returns how long to wait for
// the next look. Looking sooner does no harm.
func (r *run) look(ctx context.Context) time.Duration {
	if wait := time.Until(r.pace.retryAt); wait > 0 {
		return wait
	}
	wait, err := r.awaitSource()
	if err == nil && wait == 0 {
		if wait, err = r.claimIfAllowed(ctx); err == nil {
			r.pace.retries.reset()
			r.health.sourceAnswers()
		}
	}
	if err != nil && r.calls.Err() == nil {
		r.health.sourceFailed(err)
		wait = r.pace.retries.next(rand.Float64)
		r.pace.retryAt = time.Now().Add(wait)
	}
	return wait
}

// awaitSource compares the schema before the first claim, after each failure of the database, and
// every few seconds. wait is not 0 while nothing may be claimed: the schema is not ready, or
// outcomes from before the failure are not written yet. Those go first: they may be of rows that
// would be claimed again.
func (r *run) awaitSource() (wait time.Duration, err error) {
	if !r.health.sourceReady() || time.Since(r.pace.comparedAt) > checkEvery {
		var schema Schema
		err := storeCall(r.calls, func(ctx context.Context) (err error) {
			schema, err = r.store.Schema(ctx)
			return err
		})
		if err != nil {
			return 0, err
		}
		r.pace.comparedAt = time.Now()
		r.health.schemaCompared(schema)
		if schema.State != SchemaReady {
			r.health.sourceAnswers()
			wait = min(max(r.cfg.PollInterval, time.Second), checkEvery)
			r.pace.retryAt = time.Now().Add(wait)
			return wait, nil
		}
	}
	if r.completer.unwritten() != nil {
		r.completer.retry()
		return r.pace.retries.next(rand.Float64), nil
	}
	return 0, nil
}

// claimIfAllowed claims once, unless the sink, the configuration or the rows in flight forbid it.
func (r *run) claimIfAllowed(ctx context.Context) (wait time.Duration, err error) {
	rows, wait := r.askSink(ctx)
	if wait > 0 {
		return wait, nil
	}
	if r.cfg.Paused || ctx.Err() != nil {
		return checkEvery, nil
	}
	room, bytes, ok := r.flight.room()
	if !ok {
		return checkEvery, nil
	}
	_, more, err := r.claim(min(rows, room), bytes)
	switch {
	case err != nil || more:
		return 0, err
	case r.topics.found > 0:
		r.pace.idle = minIdle
	default:
		r.pace.idle = min(max(2*r.pace.idle, minIdle), r.cfg.PollInterval)
	}
	return r.pace.idle, nil
}

// askSink says how many rows may be claimed, or how long to wait. A probe that is due is made here:
// there is nothing else to do for this loop.
func (r *run) askSink(ctx context.Context) (rows int, wait time.Duration) {
	p := r.health.ask()
	if p.probe {
		probe, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		if err := r.sink.Probe(probe); ctx.Err() == nil {
			r.health.probed(err)
		}
		p = r.health.ask()
	}
	return cmp.Or(p.rows, r.cfg.BatchSize), p.wait
}

// claim leases up to n rows and queues them. more says to claim again at once. What the breaker
// learned while the claim was under way holds for its rows too.
func (r *run) claim(n int, bytes int64) (claimed int, more bool, err error) {
	if err := r.listTopics(); err != nil {
		return 0, false, err
	}
	breaker := r.health.breakerState()
	req := ClaimRequest{
		Shares:      r.topics.shares(n),
		Lease:       r.cfg.Lease,
		MaxAttempts: r.cfg.MaxAttempts,
		MaxBytes:    bytes,
	}
	if len(req.Shares) == 0 {
		return 0, false, nil
	}
	var out Claimed
	asked := time.Now() // before the claim is sent: see keeper.go
	err = storeCall(r.calls, func(ctx context.Context) (err error) {
		out, err = r.store.Claim(ctx, req)
		return err
	})
	for _, d := range out.Dead {
		r.completer.died(d, "")
	}
	if err != nil {
		return 0, false, err
	}
	r.completer.release(r.flight.add(out, asked))
	if state := r.health.breakerState(); state != breaker && state != BreakerClosed {
		r.releaseQueue()
	}
	byTopic := map[string]int{}
	for _, e := range out.Events {
		byTopic[e.Topic]++
	}
	for topic, n := range byTopic {
		r.cfg.Observer.Claimed(topic, n)
	}
	return len(out.Events), r.topics.claimed(req.Shares, byTopic, time.Now()), nil
}

// listTopics finds the topics, when none are configured.
func (r *run) listTopics() error {
	if !r.topics.stale(time.Now(), min(r.cfg.PollInterval, listEvery)) {
		return nil
	}
	return storeCall(r.calls, func(ctx context.Context) error {
		names, err := r.store.Topics(ctx)
		if err == nil {
			r.topics.listed(names, time.Now())
		}
		return err
	})
}

// claimOnce claims up to n rows in all, and returns when nothing more is due. It does not wait for a
// database or a sink that is away: it returns an error.
func (r *run) claimOnce(ctx context.Context, n int) error {
	wait, err := r.awaitSource()
	switch {
	case err != nil:
		return err
	case wait > 0:
		return errors.New(r.health.snapshot().Schema.Message)
	case r.cfg.Paused:
		return errors.New("the dispatcher is paused; set state to Running")
	}
	for n > 0 && ctx.Err() == nil {
		rows, wait := r.askSink(ctx)
		if wait > 0 {
			return fmt.Errorf("the destination takes no events: %w", r.health.snapshot().Sink.Err)
		}
		room, bytes, ok := r.flight.room()
		if !ok {
			pause(checkEvery, r.wake, ctx.Done())
			continue
		}
		claimed, more, err := r.claim(min(n, rows, room), bytes)
		if err != nil || claimed == 0 && !more {
			return err
		}
		n -= claimed
	}
	return nil
}

// awaitEmpty waits until every claimed row is written back, or ctx ends.
func (r *run) awaitEmpty(ctx context.Context) {
	for !r.flight.empty() && ctx.Err() == nil && r.completer.unwritten() == nil {
		pause(checkEvery, r.wake, ctx.Done())
	}
}
