package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

const (
	// minIdle is the wait between two claims while rows are found, and the first few after the last ones.
	// Then each wait is as long as the quiet was before it, up to PollInterval: an event waits no longer
	// than it came after the one before it. At 500 events a second the wait is 2 ms for 98 of 100; at 5
	// a second an event costs ten claims. A claim that finds nothing costs 140 µs of CPU time when it is
	// one of many, and half a millisecond when both processes have to be woken for it; somewhat more
	// than half of it is the database's.
	minIdle = 2 * time.Millisecond
	// minIdleBatches is the same before a sink that takes batches. A call costs the destination about as much
	// with four events as with one, so a stream should come in fewer of them: at 500 events a second in about
	// 100 calls, 100 claims and 100 write-backs. An event that comes alone, after a while, waits as before.
	minIdleBatches = 8 * time.Millisecond
	// minIdleRates is the same while each tenant has a rate: most of those that a claim visits have used it.
	minIdleRates = 50 * time.Millisecond
	// flowing is how many of these waits are as long after the last rows.
	flowing = 4
	// checkEvery is the longest that the loop sleeps when it waits to be woken.
	checkEvery = 5 * time.Second
	// compareEvery is how often the schema is compared: it may be migrated at any time.
	compareEvery = 30 * time.Second
	// Topics are listed in every claim that comes half of listEvery, or of a shorter PollInterval, after the last
	// one: in each claim of an idle dispatcher, so that the first event of a new topic waits for no more than one
	// poll. A wake-up that finds nothing may be for a topic that is not known: then they are listed again after
	// listSoon.
	listEvery = time.Second
	listSoon  = 20 * time.Millisecond
	// probeTimeout bounds a probe of the sink.
	probeTimeout = 10 * time.Second
)

// pace is when the claim loop claims next.
type pace struct {
	least      time.Duration // the shortest wait: minIdle or minIdleBatches
	foundAt    time.Time     // when rows were found last
	woken      bool          // something happened, and nothing was found since
	comparedAt time.Time     // when the schema was compared last
	retryAt    time.Time     // when the database is tried again after a failure
	retries    ramp
}

func newPace(sinkBatch int) pace {
	p := pace{least: minIdle, retries: ramp{100 * time.Millisecond, 5 * time.Second, 0}}
	if sinkBatch > 1 {
		p.least = minIdleBatches
	}
	return p
}

// idle is how long to wait when no more rows are due, after so much quiet.
func (p *pace) idle(quiet, pollInterval time.Duration) time.Duration {
	if quiet < flowing*p.least {
		quiet = p.least
	}
	return min(quiet, pollInterval)
}

// claimLoop claims until ctx ends. Nothing that the database or the sink does ends it.
func (r *run) claimLoop(ctx context.Context) {
	for ctx.Err() == nil {
		next := time.Now().Add(r.tryClaim(ctx))
		r.d.health.alive()
		for woken := false; !woken && ctx.Err() == nil && time.Now().Before(next); {
			woken = pause(min(time.Until(next), checkEvery), r.d.wake, ctx.Done())
			r.pace.woken = r.pace.woken || woken
			r.d.health.alive()
		}
	}
}

// tryClaim checks both ends and claims what there is room for. It returns how long to wait for the next
// claim. To claim sooner does no harm.
func (r *run) tryClaim(ctx context.Context) time.Duration {
	if wait := time.Until(r.pace.retryAt); wait > 0 {
		return wait
	}
	wait, err := r.awaitSource()
	if err == nil && wait == 0 {
		if wait, err = r.claimIfAllowed(ctx); err == nil {
			r.pace.retries.reset()
			r.d.health.sourceResponded()
		}
	}
	if err != nil && r.life.calls.Err() == nil {
		r.d.health.sourceFailed(err)
		wait = r.pace.retries.next(rand.Float64)
		r.pace.retryAt = time.Now().Add(wait)
	}
	return wait
}

// awaitSource compares the schema before the first claim, after each failure of the database, and
// now and then. wait is not 0 while nothing may be claimed: the schema is not ready, or
// outcomes from before the failure are not written yet. These are written first: they may be of rows that
// would be claimed again.
func (r *run) awaitSource() (wait time.Duration, err error) {
	if !r.d.health.sourceReady() || time.Since(r.pace.comparedAt) > compareEvery {
		schema, err := storeCall(r.life.calls, r.d.store.Schema)
		if err != nil {
			return 0, err
		}
		r.pace.comparedAt = time.Now()
		r.d.health.schemaCompared(schema)
		if schema.State != dispatcher.SchemaReady {
			r.d.health.sourceResponded()
			wait = min(max(r.d.cfg.PollInterval, time.Second), checkEvery)
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
	if wait := r.flight.intake().permit(r.probe); wait > 0 {
		return wait, nil
	}
	if r.flight.controls().isPaused() || ctx.Err() != nil {
		return checkEvery, nil
	}
	room, bytes, ok := r.flight.intake().room()
	if !ok {
		_, err := r.listTopics() // another topic may appear while one has everything
		return longSupply, err
	}
	claimed, more, err := r.claim(room, bytes)
	if claimed > 0 {
		r.pace.foundAt, r.pace.woken = time.Now(), false
	}
	if err != nil || more {
		return 0, err
	}
	return r.flight.intake().idle(&r.pace, r.d.cfg.PollInterval), nil
}

// claim leases up to n rows and queues them. more says to claim again at once.
func (r *run) claim(n int, bytes int64) (claimed int, more bool, err error) {
	r.searching = false
	if idle, err := r.listTopics(); err != nil || idle {
		return 0, false, err
	}
	req, writes := r.flight.intake().request(n, r.completer.unwrittenTopics())
	if len(req.Shares) == 0 {
		return 0, false, nil
	}
	req.Lease, req.MaxAttempts, req.MaxBytes, req.MaxRowBytes = r.d.cfg.Lease, r.d.cfg.MaxAttempts, bytes, r.d.cfg.MaxBytes
	req.Fair, req.TenantRate = r.d.cfg.Fairness == dispatcher.FairnessTenant, r.d.cfg.TenantRateLimit
	sentAt := time.Now() // before the claim is sent: see keeper.go
	out, err := storeCall(r.life.calls, func(ctx context.Context) (dispatcher.Claimed, error) { return r.d.store.Claim(ctx, req) })
	for _, d := range out.Dead {
		r.completer.deadLettered(d, "")
	}
	expired := map[string]int{}
	for _, e := range out.Expired {
		expired[e.Topic]++
	}
	for topic, n := range expired {
		r.completer.expired(topic, n)
	}
	if err != nil {
		refused, err := r.flight.intake().claimFailed(req.Shares, err)
		if refused != nil {
			r.d.health.refused(&r.d.health.claims, refused)
			r.d.cfg.Observer.ClaimRefused()
		}
		return 0, true, err
	}
	r.searching = out.Unfinished
	r.d.health.types.note(out.Events, sentAt)
	byTopic := countTopics(&out)
	refused, unreadable, stops := r.flight.intake().add(out, sentAt, writes)
	r.completer.release(refused)
	r.failUnreadable(unreadable, out.Unreadable)
	for topic, n := range byTopic {
		r.d.cfg.Observer.Claimed(topic, n)
	}
	more = r.flight.intake().claimed(req.Shares, byTopic, stops, &out)
	return out.Leased(), more || len(expired) > 0, nil // what expires makes room for the next portion
}

// failUnreadable writes back rows that cannot be read: no later attempt could read them.
func (r *run) failUnreadable(rows []*row, why []dispatcher.Unreadable) {
	results := make([]result, len(rows))
	for i, row := range rows {
		f := dispatcher.Failure{Lease: row.event.Lease(), Error: why[i].Err.Error(), Reason: dispatcher.ReasonPoisonMessage, Cause: dispatcher.CauseOf(why[i].Err)}
		results[i] = result{row, outcome{nack, f}}
	}
	r.completer.add(results)
}

// countTopics counts a claim's rows by topic.
func countTopics(c *dispatcher.Claimed) map[string]int {
	n := map[string]int{}
	for _, u := range c.Unreadable {
		n[u.Event.Topic]++
	}
	for _, e := range c.Events {
		n[e.Topic]++
	}
	return n
}

// listTopics finds the topics, when none are configured. idle says that there is nothing to claim:
// none has live rows.
func (r *run) listTopics() (idle bool, err error) {
	if !r.flight.intake().isStale(min(r.d.cfg.PollInterval, listEvery) / 2) {
		return false, nil
	}
	sentAt := time.Now()
	names, err := storeCall(r.life.calls, r.d.store.Topics)
	if err != nil {
		return false, err
	}
	r.flight.intake().listTopics(names, time.Since(sentAt))
	return len(names) == 0, nil
}

// claimOnce claims up to n rows in all, and returns when nothing more is due. It does not wait for a
// database or a sink that is unreachable: it returns an error.
func (r *run) claimOnce(ctx context.Context, n int) error {
	wait, err := r.awaitSource()
	switch {
	case err != nil:
		return err
	case wait > 0:
		return errors.New(r.d.Snapshot().Schema.Message)
	}
	found := false // a claim of this round brought rows, and may have left others of their topics
	for n > 0 && ctx.Err() == nil {
		if r.flight.controls().isPaused() {
			return errPaused
		}
		if wait := r.flight.intake().permit(r.probe); wait > 0 {
			if err := r.refusal(); err != nil {
				return err
			}
			pause(wait, r.d.wake, ctx.Done()) // for the first probe
			continue
		}
		idle := r.flight.intake().empty()
		room, bytes, ok := r.flight.intake().room()
		if !ok {
			pause(longSupply, r.d.wake, ctx.Done())
			continue
		}
		claimed, more, err := r.claim(min(n, room), bytes)
		if err != nil {
			return err
		}
		if found = found || claimed > 0; claimed == 0 && !more && !r.searching {
			if found || r.flight.intake().hurry() {
				found = false
				continue
			}
			if r.flight.intake().passedOver() || len(r.completer.unwrittenTopics()) > 0 {
				pause(longSupply, r.d.wake, ctx.Done())
				continue
			}
			if err := r.refusal(); err != nil || idle || r.d.cfg.Ordering != dispatcher.OrderingKey || r.completer.unwritten() != nil {
				return err
			}
			r.awaitEmpty(ctx) // other rows may wait for those
		}
		n -= claimed
	}
	return nil
}

// refusal is not nil while the destination takes no events.
func (r *run) refusal() error {
	if s := r.d.Snapshot(); s.Breaker != dispatcher.BreakerClosed {
		return fmt.Errorf("the destination takes no events: %w", s.Sink.Err)
	}
	return nil
}

// awaitEmpty waits until every claimed row is written back, or ctx ends.
func (r *run) awaitEmpty(ctx context.Context) {
	for !r.flight.intake().empty() && ctx.Err() == nil && r.completer.unwritten() == nil {
		pause(checkEvery, r.d.wake, ctx.Done())
	}
}
