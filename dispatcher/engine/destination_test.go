package engine_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// A destination that cannot be reached costs no attempt, neither at the start nor in the middle,
// and delivery continues by itself when it has recovered.
//
// CONTRACT: C-32
func TestUnreachableDestinationSpendsNoAttempt(t *testing.T) {
	const events, concurrency = 400, 4
	r := newRig(t)
	r.enqueue("orders", events)
	sink := &book{}
	gate := &sinktest.Switch{Sink: sink}
	sink.respond = func(context.Context, *dispatcher.Event) error {
		if n, _ := sink.delivered(); n == events/4 {
			gate.Down.Store(true)
		}
		return nil
	}
	gate.Down.Store(true)
	log := &logBook{}
	d := r.start(r.store(), gate, dispatcher.Config{BatchSize: 50, Concurrency: concurrency, Logger: log.logger()})
	unreachable := func() bool { return d.Snapshot().Breaker == dispatcher.BreakerUnreachable }
	r.eventually("the breaker notices at the start", unreachable)
	if n := r.count("status = 'pending' and attempts = 0"); n != events {
		t.Errorf("%d of %d rows were left alone", n, events)
	}
	if s := d.Snapshot().Sink; s.OK || !s.Known || !dispatcher.IsUnavailable(s.Err) {
		t.Errorf("the snapshot says of the sink %+v", s)
	}
	gate.Down.Store(false)
	r.eventually("the destination becomes unreachable in the middle", gate.Down.Load)
	r.eventually("the breaker notices", unreachable)
	r.eventually("everything that is not delivered waits with its attempt", func() bool {
		return r.count("status = 'pending' and attempts = 0 or status = 'delivered' and attempts = 1") == events
	})
	if n := r.count("status = 'pending'"); n == 0 || n == events {
		t.Fatalf("%d rows wait; the destination did not become unreachable in the middle", n)
	}
	gate.Down.Store(false)
	r.eventually("every row is delivered", func() bool { return r.count("status = 'delivered' and attempts = 1") == events })
	if n, times := sink.delivered(); n != events || times != events {
		t.Errorf("%d events were delivered %d times, want %d once each", n, times, events)
	}
	r.eventually("the snapshot says that all is well", func() bool {
		s := d.Snapshot()
		return s.Sink.OK && s.Breaker == dispatcher.BreakerClosed && s.InFlightRows == 0
	})
	if n := len(log.lines("the destination cannot be reached")); n != 1 && n != 2 { // the second time, it may be back at the first probe
		t.Errorf("the log says %d times that the destination is unreachable, want 1 or 2", n)
	}
	// A delivery that got through before the destination became unreachable may end after the breaker has
	// opened, and close it for a moment: as often as there are deliveries at once, and no more.
	if n := len(log.lines("its destination cannot be reached")); n < 1 || n > 1+concurrency {
		t.Errorf("the log says %d times that the topic is paused, want 1, or a few more for late successes", n)
	}
}

// A destination that refuses everything gets a few rows at a time, so that an outage behind it does
// not cost every row an attempt. The first success opens the gate.
//
// CONTRACT: C-32
func TestRefusingDestinationIsTriedWithAFew(t *testing.T) {
	const events, concurrency = 3000, 4
	r := newRig(t)
	r.enqueue("orders", events)
	var healthy atomic.Bool
	sink := &book{respond: func(context.Context, *dispatcher.Event) error {
		if healthy.Load() {
			return nil
		}
		return errRefused
	}}
	d := r.start(r.store(), sink, dispatcher.Config{
		Concurrency: concurrency, BatchSize: 500, MaxAttempts: 1000, Backoff: dispatcher.ExponentialBackoff(time.Hour, time.Hour),
	})
	r.eventually("the breaker notices", func() bool { return d.Snapshot().Breaker == dispatcher.BreakerRefusing })
	r.eventually("the queue is given back, and a half-open probe was made", func() bool {
		return r.count("status = 'processing'") == 0 && r.count("attempts > 0") > 30+concurrency
	})
	if n := r.count("attempts > 0"); n > 30+concurrency+5+10+20+40 {
		t.Errorf("%d of %d rows spent an attempt on the outage", n, events)
	}
	if s := d.Snapshot(); s.Sink.OK || s.LastError != errRefused.Error() || s.LastErrorAt.IsZero() {
		t.Errorf("the snapshot says of the sink %+v, and %q at %v", s.Sink, s.LastError, s.LastErrorAt)
	}
	healthy.Store(true)
	r.eventually("every row is delivered", func() bool {
		pgtest.Exec(r, "update outbox.outbox_events set next_attempt_at = now() where status = 'pending' and next_attempt_at > now()")
		return r.count("status = 'delivered'") == events
	})
}

// One event that the destination refuses is its own failure, and holds up no other.
//
// CONTRACT: C-32
func TestRefusedEventIsItsOwnFailure(t *testing.T) {
	r := newRig(t)
	r.enqueue("bad", 3)
	sink := &sinktest.Refusing{Sink: &book{}, Refuse: func(e *dispatcher.Event) error {
		if e.Topic == "bad" {
			return errRefused
		}
		return nil
	}}
	d := r.start(r.store(), sink, dispatcher.Config{MaxAttempts: 30})
	r.eventually("the three are dead", func() bool { return r.count("status = 'dead' and attempts = 30") == 3 })
	if s := d.Snapshot(); s.Breaker != dispatcher.BreakerClosed || !s.Sink.OK {
		t.Errorf("90 failures of three events opened the breaker: %+v", s)
	}
	r.enqueue("orders", 100)
	r.eventually("the others are delivered", func() bool { return r.count("status = 'delivered' and attempts = 1") == 100 })
}
