package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

const (
	// minIdle is the wait between two looks while rows are found, and the first few after the last ones.
	// Then each wait is as long as the quiet was before it, up to PollInterval: an event waits no longer
	// than it came after the one before it. At 500 events a second the wait is 2 ms for 98 of 100; at 5
	// a second an event costs ten looks. A look that finds nothing costs 140 µs of CPU time when it is
	// one of many, and half a millisecond when both processes have to be woken for it; somewhat more
	// than half of it is the database's.
	minIdle = 2 * time.Millisecond
	// minIdleBatches is the same before a sink that takes batches. A call costs the destination about as much
	// with four events as with one, so a stream should come in fewer of them: at 500 events a second in about
	// 100 calls, 100 claims and 100 write-backs. An event that comes alone, after a while, waits as before.
	minIdleBatches = 8 * time.Millisecond
	// flowing is how many of these waits are as long after the last rows.
	flowing = 4
	// The claim after a wake-up is for so few rows for each topic, of whichever they are, if the last one found
	// no more: it is quick. But not for many topics, and no more than so many times in a row: it is not for all rows.
	fewRows   = 10
	fewTopics = 5
	fewInARow = 4
	// checkEvery is the longest that the loop sleeps when it waits to be told.
	checkEvery = 5 * time.Second
	// compareEvery is how often the schema is compared: somebody may migrate it.
	compareEvery = 30 * time.Second
	// Topics are listed in every look that comes half of listEvery, or of a shorter PollInterval, after the last
	// one: in each look of an idle dispatcher, so that the first event of a new topic waits for no more than one
	// poll. A wake-up that finds nothing may be for a topic that is not known: then they are listed again after
	// listSoon.
	listEvery = time.Second
	listSoon  = 20 * time.Millisecond
	// probeTimeout bounds a probe of the sink.
	probeTimeout = 10 * time.Second
)

// pace is when the claim loop looks next.
type pace struct {
	least      time.Duration // the shortest wait: minIdle or minIdleBatches
	foundAt    time.Time     // when rows were found last
	woken      bool          // something happened, and nothing was found since
	lastFound  int           // how many the last claim found
	fews       int           // claims of a few rows since the last ordinary one
	comparedAt time.Time     // when the schema was compared last
	retryAt    time.Time     // when the database is asked again after a failure
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
		next := time.Now().Add(r.look(ctx))
		r.health.alive()
		for told := false; !told && ctx.Err() == nil && time.Now().Before(next); {
			told = pause(min(time.Until(next), checkEvery), r.wake, ctx.Done())
			r.pace.woken = r.pace.woken || told
			r.health.alive()
		}
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
// now and then. wait is not 0 while nothing may be claimed: the schema is not ready, or
// outcomes from before the failure are not written yet. Those go first: they may be of rows that
// would be claimed again.
func (r *run) awaitSource() (wait time.Duration, err error) {
	if !r.health.sourceReady() || time.Since(r.pace.comparedAt) > compareEvery {
		var schema dispatcher.Schema
		err := storeCall(r.calls, func(ctx context.Context) (err error) {
			schema, err = r.store.Schema(ctx)
			return err
		})
		if err != nil {
			return 0, err
		}
		r.pace.comparedAt = time.Now()
		r.health.schemaCompared(schema)
		if schema.State != dispatcher.SchemaReady {
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
	p := r.askSink()
	if p.wait > 0 {
		return p.wait, nil
	}
	if r.flight.isPaused() || ctx.Err() != nil {
		return checkEvery, nil
	}
	room, bytes, ok := r.flight.room()
	if !ok {
		_, err := r.listTopics() // another topic may come while one has everything
		return longSupply, err
	}
	held := r.flight.skip(p.held)
	few := r.expectFew() && len(held) == 0
	if few {
		room = min(room, fewRows*len(r.topics.names))
	}
	claimed, more, err := r.claim(room, bytes, few, held)
	now := time.Now()
	r.pace.lastFound = claimed
	if claimed > 0 {
		r.pace.foundAt, r.pace.woken = now, false
	}
	switch {
	case err != nil || more:
		return 0, err
	case r.pace.woken && r.topics.stale(now, listSoon):
		r.topics.listedAt, r.pace.woken = time.Time{}, false
		return 0, nil
	}
	wait = r.pace.idle(now.Sub(r.pace.foundAt), r.cfg.PollInterval)
	if !r.topics.fixed { // an event of a topic that is not known waits no longer than others
		wait = min(wait, max(r.pace.least, r.topics.listedAt.Add(r.cfg.PollInterval).Sub(now)))
	}
	if r.pace.woken && !r.topics.fixed {
		wait = min(wait, listSoon)
	}
	if few { // it may have left rows
		wait = min(wait, minIdle)
	}
	if !p.next.IsZero() {
		wait = min(wait, p.next.Sub(now))
	}
	return wait, nil
}

// expectFew reports whether the claim is for the few rows that somebody has just told of.
func (r *run) expectFew() bool {
	few := r.news.Swap(false) && r.pace.lastFound < fewRows && r.pace.fews < fewInARow &&
		len(r.topics.names) > 0 && len(r.topics.names) <= fewTopics && r.cfg.Ordering != dispatcher.OrderingKey
	if r.pace.fews++; !few {
		r.pace.fews = 0
	}
	return few
}

// askSink says which topics are held, or how long to wait. A probe that is due begins here, and wakes the
// loop when it ends.
func (r *run) askSink() permit {
	p := r.health.ask(r.flight.has)
	if p.probe {
		r.probe()
	}
	return p
}

// claim leases up to n rows and queues them, of held topics at most so many as may be tried. more says
// to claim again at once. What the breakers learned while the claim was under way holds for its rows
// too.
func (r *run) claim(n int, bytes int64, few bool, held map[string]int) (claimed int, more bool, err error) {
	if idle, err := r.listTopics(); err != nil || idle {
		return 0, false, err
	}
	req := dispatcher.ClaimRequest{
		Shares:      r.topics.shares(n, held),
		Lease:       r.cfg.Lease,
		MaxAttempts: r.cfg.MaxAttempts,
		MaxBytes:    bytes,
		Few:         few,
		Keys:        r.flight.keyOrder(),
	}
	if len(req.Shares) == 0 {
		return 0, false, nil
	}
	var out dispatcher.Claimed
	writes := r.flight.writeCount()
	asked := time.Now() // before the claim is sent: see keeper.go
	err = storeCall(r.calls, func(ctx context.Context) (err error) {
		out, err = r.store.Claim(ctx, req)
		return err
	})
	for _, d := range out.Dead {
		r.completer.died(d, "")
	}
	if out.Unburied != nil {
		r.log.Warn("the database refuses to let rows become dead that have no attempt left; they stay, and others go on", "error", out.Unburied)
		r.health.outcomesRefused(out.Unburied)
	}
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			r.flight.shrink()
		}
		return 0, false, err
	}
	r.health.types.note(out.Events, asked)
	byTopic := countTopics(&out)
	for topic, rows := range held {
		if rows > 0 && slices.ContainsFunc(req.Shares, func(s dispatcher.Share) bool { return s.Topic == topic }) {
			r.health.tried(topic, byTopic[topic])
		}
	}
	refused, unreadable, stops := r.flight.add(out, asked, writes)
	r.completer.release(refused)
	r.health.typesClaimed(req.Shares, byTopic, stops)
	r.bury(unreadable, out.Unreadable)
	for topic, n := range byTopic {
		r.cfg.Observer.Claimed(topic, n)
		if _, was := held[topic]; !was && r.health.holds(topic) {
			r.releaseTopic(topic)
		}
	}
	return out.Leased(), r.topics.claimed(req.Shares, byTopic, time.Now()), nil
}

// bury writes back rows that cannot be read: no later attempt could read them.
func (r *run) bury(rows []*row, why []dispatcher.Unreadable) {
	results := make([]result, len(rows))
	for i, row := range rows {
		f := dispatcher.Failure{Lease: row.event.Lease(), Error: storable(why[i].Err), Reason: dispatcher.ReasonPoisonMessage, Cause: dispatcher.CauseOf(why[i].Err)}
		results[i] = result{row, outcome{nack, f}}
	}
	r.completer.add(results)
}

// countTopics counts a claim's rows by topic. The events of a topic come together.
func countTopics(c *dispatcher.Claimed) map[string]int {
	n := map[string]int{}
	for _, u := range c.Unreadable {
		n[u.Event.Topic]++
	}
	events := c.Events
	for from, to := 0, 0; from < len(events); from = to {
		for to = from; to < len(events) && events[to].Topic == events[from].Topic; to++ {
		}
		n[events[from].Topic] += to - from
	}
	return n
}

// listTopics finds the topics, when none are configured. idle says that there is nothing to claim:
// none has live rows.
func (r *run) listTopics() (idle bool, err error) {
	if !r.topics.stale(time.Now(), min(r.cfg.PollInterval, listEvery)/2) {
		return false, nil
	}
	asked := time.Now()
	err = storeCall(r.calls, func(ctx context.Context) error {
		names, err := r.store.Topics(ctx)
		if err == nil {
			r.topics.listed(names, time.Now())
			r.flight.setAlone(len(r.topics.names) == 1)
			r.topics.took = time.Since(asked)
			idle = len(names) == 0
		}
		return err
	})
	return idle, err
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
	}
	for n > 0 && ctx.Err() == nil {
		if r.flight.isPaused() {
			return errPaused
		}
		p := r.askSink()
		if p.wait > 0 {
			if err := r.refusal(); err != nil {
				return err
			}
			pause(p.wait, r.wake, ctx.Done()) // for the first probe
			continue
		}
		idle := r.flight.empty()
		room, bytes, ok := r.flight.room()
		if !ok {
			pause(longSupply, r.wake, ctx.Done())
			continue
		}
		held := r.flight.skip(p.held)
		claimed, more, err := r.claim(min(n, room), bytes, false, held)
		if err != nil {
			return err
		}
		if claimed == 0 && !more {
			if len(held) > len(p.held) { // topics were left out that have enough for now
				pause(longSupply, r.wake, ctx.Done())
				continue
			}
			if err := r.refusal(); err != nil || idle || r.cfg.Ordering != dispatcher.OrderingKey || r.completer.unwritten() != nil {
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
	if s := r.health.snapshot(); s.Breaker != dispatcher.BreakerClosed {
		return fmt.Errorf("the destination takes no events: %w", s.Sink.Err)
	}
	return nil
}

// awaitEmpty waits until every claimed row is written back, or ctx ends.
func (r *run) awaitEmpty(ctx context.Context) {
	for !r.flight.empty() && ctx.Err() == nil && r.completer.unwritten() == nil {
		pause(checkEvery, r.wake, ctx.Done())
	}
}
