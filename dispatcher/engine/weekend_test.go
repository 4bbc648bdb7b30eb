package engine

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// skipLong leaves out with -short what the race detector takes a minute over and finds nothing in: a long virtual time, and
// simulations without goroutines. These tests are named TestLong, run in parallel, and hack/test.sh runs them without it.
func skipLong(t *testing.T) {
	if testing.Short() {
		t.Skip("it is long: run it without -short")
	}
	t.Parallel()
}

// A weekend of 503 makes no event dead, however old it was when the outage began. A topic whose every event makes the
// destination report a fault ends once others are delivered.
// CONTRACT: C-32
func TestLongOutageOfFaultsKillsNoEvent(t *testing.T) {
	skipLong(t)
	synctest.Test(t, func(t *testing.T) {
		const events, poison = 40, 20
		store := newMemory()
		store.enqueue("orders", events)
		store.enqueue("poison", poison)
		for i, r := range store.order {
			if i%2 == 0 {
				r.event.CreatedAt = r.event.CreatedAt.Add(-25 * time.Hour)
			}
		}
		var back atomic.Bool
		sink := &stubSink{batch: 100, deliver: func(_ context.Context, e *dispatcher.Event) error {
			if back.Load() && e.Topic == "orders" {
				return nil
			}
			return errFault
		}}
		_, stop := begin(t, store, sink, dispatcher.Config{PollInterval: 10 * time.Second})
		<-time.After(72 * time.Hour)
		if n := store.count("orders", "dead") + store.count("poison", "dead"); n > 0 {
			t.Errorf("72 hours of 503 killed %d events", n)
		}
		back.Store(true)
		took := passes(t, 15*time.Minute, "all events are delivered after the outage", func() bool {
			return store.count("orders", "delivered") == events
		})
		t.Logf("all were delivered %v after the outage", took)
		passes(t, 9*time.Hour, "the poison is dead", func() bool { return store.count("poison", "dead") == poison })
		stop()
	})
}

// While others are delivered, a topic of faults keeps its attempts for a day from its first fault; while nothing is
// delivered, for a week.
// CONTRACT: C-32
func TestLongFaultsAloneEnd(t *testing.T) {
	skipLong(t)
	for name, test := range map[string]struct {
		others bool
		bound  time.Duration
	}{"others are delivered": {true, faultFor}, "nothing is delivered": {false, outageFor}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newMemory()
				store.enqueue("faulty", 20)
				for _, r := range store.order {
					r.event.CreatedAt = r.event.CreatedAt.Add(-test.bound) // the age alone says nothing
				}
				sink := &stubSink{deliver: func(_ context.Context, e *dispatcher.Event) error {
					if e.Topic == "others" {
						return nil
					}
					return errFault
				}}
				began := time.Now()
				_, stop := begin(t, store, sink, dispatcher.Config{PollInterval: 10 * time.Second})
				for time.Since(began) < test.bound-time.Minute {
					if test.others {
						store.enqueue("others", 1)
					}
					<-time.After(time.Hour - time.Second)
				}
				if n := store.count("faulty", "dead"); n > 0 {
					t.Errorf("%d events are dead within %v", n, test.bound)
				}
				passes(t, 10*time.Hour, "all are dead", func() bool { return store.count("faulty", "dead") == 20 })
				stop()
			})
		})
	}
}

// The day and the week count from the event's first fault, or from what was delivered of its topic since.
//
// CONTRACT: C-32
func TestFaultsAreSparedSinceTheTopicDelivered(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	const hour, day = time.Hour, faultFor
	for name, test := range map[string]struct {
		firstFault time.Duration
		flow       flow
		spared     bool
	}{
		"nothing was ever delivered":                   {6 * day, flow{}, true},
		"nothing was for more than a week":             {outageFor, flow{}, false},
		"others are delivered":                         {day, flow{any: ago(hour)}, false},
		"others were, before the first fault":          {2 * day, flow{any: ago(3 * day)}, true},
		"its topic was delivered since":                {3 * day, flow{topic: ago(hour), any: ago(hour)}, true},
		"its topic was, and for a day only others":     {3 * day, flow{topic: ago(day), any: ago(hour)}, false},
		"its topic was, and then nothing for two days": {3 * day, flow{topic: ago(2 * day), any: ago(2 * day)}, true},
	} {
		r := &row{event: &dispatcher.Event{FaultSince: ago(test.firstFault)}, claimedAt: now, faulty: test.firstFault}
		if got := test.flow.spares(r, now); got != test.spared {
			t.Errorf("%s: the attempt is given back: %t, want %t", name, got, test.spared)
		}
	}
	fresh := &row{event: &dispatcher.Event{}, claimedAt: now, age: outageFor}
	if !(flow{any: now}).spares(fresh, now) {
		t.Error("the first fault of an old event spends its attempt")
	}
}
