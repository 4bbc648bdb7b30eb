package engine_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// A delivery that takes several leases keeps its row from a second worker that looks all the time.
//
// CONTRACT: C-31
func TestSlowDeliveryKeepsItsLease(t *testing.T) {
	r := newRig(t)
	const lease = 6 * time.Second
	begun, end := make(chan struct{}, 10), make(chan struct{})
	slow := func(context.Context, *dispatcher.Event) error { begun <- struct{}{}; <-end; return nil }
	cfg := dispatcher.Config{Lease: lease}
	sinks := [2]*book{{respond: slow}, {respond: slow}}
	for _, sink := range sinks {
		r.start(r.store(), sink, cfg)
	}
	r.enqueue("orders", 1)
	receive(t, "the delivery begins", begun)
	r.eventually("the lease has been extended", func() bool {
		return r.count(`status = 'processing' and locked_until > created_at + interval '15 seconds'`) == 1
	})
	close(end)
	r.eventually("the row is delivered", func() bool { return r.count("status = 'delivered' and attempts = 1") == 1 })
	if n := len(sinks[0].begun()) + len(sinks[1].begun()); n != 1 {
		t.Errorf("the event was delivered by %d workers, want 1", n)
	}
}

// steal lets another worker take over every leased row, as after an expired lease.
const steal = `update outbox.outbox_events set locked_by = gen_random_uuid(), attempts = attempts + 1,
	locked_until = now() + interval '1 hour' where status = 'processing'`

// untouched is true of a stolen row that no other process has changed since.
const untouched = `status = 'processing' and attempts = 2 and last_error is null
	and locked_until > now() + interval '59 minutes'`

// A worker that lost its lease while the delivery ran cuts the delivery, and changes nothing.
//
// CONTRACT: C-23 C-31
func TestLostLeaseCutsTheDelivery(t *testing.T) {
	r := newRig(t)
	r.enqueue("orders", 5)
	begun, cut := make(chan struct{}, 5), make(chan error, 5)
	sink := &book{respond: func(ctx context.Context, _ *dispatcher.Event) error {
		begun <- struct{}{}
		<-ctx.Done()
		cut <- context.Cause(ctx)
		return ctx.Err()
	}}
	seen, log := &watcher{}, &logBook{}
	// Two are in delivery, three are queued.
	d := r.start(r.store(), sink, dispatcher.Config{Lease: 6 * time.Second, Concurrency: 2, Observer: seen, Logger: log.logger()})
	receive(t, "the first delivery begins", begun)
	receive(t, "the second delivery begins", begun)
	pgtest.Exec(r, steal)
	for range 2 {
		if cause := receive(t, "the delivery is cut", cut); cause == nil || errors.Is(cause, context.Canceled) {
			t.Errorf("the delivery was cut for %v, want a reason", cause)
		}
	}
	r.eventually("all five are lost", func() bool { return seen.losses() == 5 })
	r.eventually("nothing is in flight", func() bool { return d.Snapshot().InFlightRows == 0 })
	d.stop()
	if n := r.count(untouched); n != 5 {
		t.Errorf("%d of 5 stolen rows are as the thief left them", n)
	}
	if n := len(sink.begun()); n != 2 {
		t.Errorf("%d events were begun, want the 2 of before the theft", n)
	}
	if seen.failed != 0 || seen.acked != 0 {
		t.Errorf("lost leases count as %d failures and %d acks", seen.failed, seen.acked)
	}
	if n := len(log.lines("leases were lost")); n == 0 || n > 2 {
		t.Errorf("the log has %d lines for 5 lost leases; want few for many", n)
	}
}

// The guard of the write-back decides, when the loss was not noticed before: neither a success nor
// a failure of the old attempt changes the row.
//
// CONTRACT: C-23
// REQUIREMENT: cpt-cf-mini-chat-flow-usage-outbox-dispatch
func TestLostLeaseIsNotWrittenBack(t *testing.T) {
	for name, outcome := range map[string]error{
		"ack": nil, "nack": errRefused, "release": dispatcher.Unavailable(errRefused),
		"dead": dispatcher.Permanent(dispatcher.ReasonPermanentFailure, errRefused),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.enqueue("orders", 1)
			sink := &book{respond: func(context.Context, *dispatcher.Event) error { pgtest.Exec(r, steal); return outcome }}
			seen, log := &watcher{}, &logBook{}
			got, err := r.once(sink, dispatcher.Config{Observer: seen, Logger: log.logger()}, 1)
			if want := (engine.Outcome{Lost: 1}); got != want || err != nil {
				t.Errorf("RunOnce returned %+v, %v; want %+v", got, err, want)
			}
			if r.count(untouched) != 1 {
				t.Error("the stolen row is not as the thief left it")
			}
			if seen.lost != 1 || len(seen.deadEvents) != 0 || len(log.lines("leases were lost")) != 1 {
				t.Errorf("lost %d, deadEvents %v, log %v; want one loss, reported once", seen.lost, seen.deadEvents, log.lines("lost"))
			}
		})
	}
}

// crashed is a store whose process is gone: from the crash on, nothing reaches the database.
type crashed struct {
	dispatcher.Store
	gone atomic.Bool
}

var errGone = errors.New("the process is gone")

func (c *crashed) Ack(ctx context.Context, l []dispatcher.Lease) ([]dispatcher.Lease, error) {
	if c.gone.Load() {
		return nil, errGone
	}
	return c.Store.Ack(ctx, l)
}

func (c *crashed) Extend(ctx context.Context, l []dispatcher.Lease, d time.Duration) ([]dispatcher.Lease, error) {
	if c.gone.Load() {
		return nil, errGone
	}
	return c.Store.Extend(ctx, l, d)
}

func (c *crashed) Release(ctx context.Context, l []dispatcher.Return) ([]dispatcher.Lease, error) {
	if c.gone.Load() {
		return nil, errGone
	}
	return c.Store.Release(ctx, l)
}

func (c *crashed) Claim(ctx context.Context, req dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	if c.gone.Load() {
		return dispatcher.Claimed{}, errGone
	}
	return c.Store.Claim(ctx, req)
}

// The rows of a worker that crashes are claimed again once their leases expire, under a higher token.
//
// CONTRACT: C-20 C-27
// REQUIREMENT: STORAGE-31, cpt-cf-mini-chat-actor-usage-outbox-dispatcher, cpt-cf-mini-chat-dod-usage-outbox-dispatcher
func TestCrashedWorkersRowsAreDelivered(t *testing.T) {
	const events = 300
	r := newRig(t)
	r.enqueue("orders", events)
	store := &crashed{Store: r.store()}
	var confirmed atomic.Int32
	halfway := make(chan struct{})
	first := &book{respond: func(context.Context, *dispatcher.Event) error {
		if confirmed.Add(1) == events/3 {
			store.gone.Store(true) // delivered, and never written back
			close(halfway)
		}
		return nil
	}}
	cfg := dispatcher.Config{Lease: 3 * time.Second, BatchSize: events}
	r.start(store, first, cfg)
	receive(t, "the first worker crashes", halfway)
	second := &book{}
	r.start(r.store(), second, cfg)
	r.eventually("every row is delivered", func() bool { return r.count("status = 'delivered'") == events })
	again := 0
	for id, tokens := range second.tokens {
		before := first.tokens[id]
		if !slices.IsSorted(tokens) || len(before) > 0 && tokens[0] <= before[0] {
			t.Errorf("event %s was begun under %v and then %v; a token only rises", id, before, tokens)
		}
		if len(before) > 0 {
			again++
		}
	}
	if again == 0 {
		t.Error("no event was delivered twice; the crash lost no write-back, and the test shows nothing")
	}
	delivered := map[uuid.UUID]bool{}
	for _, b := range []*book{first, second} {
		for id := range b.begun() {
			delivered[id] = true
		}
	}
	if len(delivered) != events {
		t.Errorf("%d of %d events were delivered", len(delivered), events)
	}
}
