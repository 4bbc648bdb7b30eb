package engine

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/storetest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

var errContent = errors.New("422: the payload is not what we expect")

// A destination that reports faults of its own, for hours or a weekend, makes no event dead, however old it was, and all are
// delivered soon after. A topic of poison alone ends within the bound that the documentation states: also when its every
// event makes the destination report a fault, once others are delivered. Neither does an incident kill events whose sink
// cannot know whose fault it is.
// CONTRACT: C-32
func TestLongOutageKillsNoEvent(t *testing.T) {
	skipLong(t)
	for name, test := range map[string]struct {
		batch, events, poison int
		orders, poisonous     error // in the outage; what the poison meets for ever
		poll, age             time.Duration
		lasts, recovers, then time.Duration // then the poison is dead
		spent                 int           // attempts at most in the outage, 0 for any
	}{
		"6 hours of 503, one at a time": {1, 2000, 100, errFault, errContent, 0, 0, 6 * time.Hour, 15 * time.Minute, 165 * time.Minute, 400},
		"6 hours of 503, in batches":    {100, 2000, 100, errFault, errContent, 0, 0, 6 * time.Hour, 15 * time.Minute, 165 * time.Minute, 400},
		"a weekend of 503":              {100, 40, 20, errFault, errFault, 10 * time.Second, 25 * time.Hour, 72 * time.Hour, 15 * time.Minute, 9 * time.Hour, 0},
		"an incident":                   {1, 2000, 0, errContent, nil, 0, 0, 3 * time.Hour, 2 * time.Hour, 0, 0},
	} {
		virtual(t, name, func(t *testing.T) {
			store := storetest.NewMemory()
			for _, age := range []time.Duration{0, test.age} {
				store.AddLike(dispatcher.Event{Topic: "orders", CreatedAt: time.Now().Add(-age)}, test.events/2)
				store.AddLike(dispatcher.Event{Topic: "poison", CreatedAt: time.Now().Add(-age)}, test.poison/2)
			}
			var back atomic.Bool
			sink := &sinktest.Func{Max: test.batch, Respond: func(_ context.Context, e *dispatcher.Event) error {
				switch {
				case e.Topic == "poison":
					return test.poisonous
				case back.Load():
					return nil
				}
				return test.orders
			}}
			_, stop := begin(t, store, sink, dispatcher.Config{PollInterval: test.poll})
			<-time.After(test.lasts)
			if n := store.Count("orders", "dead"); n > 0 {
				t.Errorf("%v of an outage killed %d of %d events", test.lasts, n, test.events)
			}
			if n := store.Count("poison", "dead"); n > 0 && errors.Is(test.poisonous, errFault) {
				t.Errorf("%v in which nothing was delivered killed %d events that meet a fault", test.lasts, n)
			}
			if n := store.Attempts("orders"); test.spent > 0 && n > test.spent {
				t.Errorf("%v of an outage spent %d attempts of %d events, want next to none", test.lasts, n, test.events)
			}
			back.Store(true)
			t.Logf("all were delivered %v after the outage", delivered(t, test.recovers, store, "orders", test.events))
			passes(t, test.then, "the poison is dead", func() bool { return store.Count("poison", "dead") == test.poison })
			stop()
		})
	}
}

// A call that never returns is woken as stuck. Its event is tried again, and everything else flows.
// CONTRACT: C-33, C-34
func TestCallThatNeverReturnsIsStuckAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewMemory()
		store.Add("orders", 100)
		var hung uuid.UUID
		var once sync.Once
		release := make(chan struct{})
		sink := &sinktest.Func{Respond: func(_ context.Context, e *dispatcher.Event) error {
			wait := false
			once.Do(func() { hung, wait = e.ID, true })
			if wait {
				<-release
			}
			return nil
		}}
		d, stop := begin(t, store, sink, dispatcher.Config{Concurrency: 2, DeliveryTimeout: time.Minute})
		delivered(t, 10*time.Second, store, "orders", 99)
		if s := d.Snapshot(); s.StuckCalls != 0 {
			t.Errorf("%d calls are stuck before their time is over", s.StuckCalls)
		}
		passes(t, 2*time.Minute, "the call is woken as stuck", func() bool { return d.Snapshot().StuckCalls == 1 })
		if s := d.Snapshot().Stuck[0]; s.EventID != hung || s.Topic != "orders" || s.Events != 1 {
			t.Errorf("stuck is %+v, want event %s", s, hung)
		}
		delivered(t, time.Minute, store, "orders", 100)
		store.Add("payments", 100)
		delivered(t, 10*time.Second, store, "payments", 100)
		close(release)
		passes(t, 10*time.Second, "the call returns", func() bool { return d.Snapshot().StuckCalls == 0 })
		if s := d.Snapshot(); s.InFlightRows != 0 || s.InFlightBytes != 0 {
			t.Errorf("%d rows with %d bytes stay in flight", s.InFlightRows, s.InFlightBytes)
		}
		stop()
	})
}

// A topic that was held is tried again although one of its calls from before hangs.
// CONTRACT: C-32, C-33
func TestHungCallDelaysNoHalfOpenProbe(t *testing.T) {
	for _, concurrency := range []int{16, dispatcher.Auto} {
		synctest.Test(t, func(t *testing.T) {
			store := storetest.NewMemory()
			store.Add("orders", 1)
			var hung, back atomic.Bool
			release := make(chan struct{})
			sink := &sinktest.Func{Respond: func(context.Context, *dispatcher.Event) error {
				switch {
				case !hung.Swap(true):
					<-release
				case !back.Load():
					return errUnreachable
				}
				return nil
			}}
			_, stop := begin(t, store, sink, dispatcher.Config{Concurrency: concurrency, DeliveryTimeout: time.Hour})
			<-time.After(2 * time.Second)
			store.Add("orders", 100)
			<-time.After(5 * time.Second)
			back.Store(true)
			took := delivered(t, 30*time.Second, store, "orders", 100)
			t.Logf("delivered %v after the destination came back, with concurrency %d", took, concurrency)
			close(release)
			stop()
		})
	}
}

// A handler that ends its goroutine fails its event, and the worker continues.
// CONTRACT: C-33
func TestGoexitFailsItsEventAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewMemory()
		store.Add("orders", 10)
		var first atomic.Bool
		sink := &sinktest.Func{Respond: func(context.Context, *dispatcher.Event) error {
			if !first.Swap(true) {
				runtime.Goexit()
			}
			return nil
		}}
		d, stop := begin(t, store, sink, dispatcher.Config{Concurrency: 1})
		delivered(t, time.Minute, store, "orders", 10)
		need.Want(t, 11, "%d attempts were spent on 10 events, want 11", store.Attempts("orders"))
		stop()
		s := d.Snapshot()
		need.Want(t, 0, "%d calls are stuck", s.StuckCalls)
	})
}

// A probe that is made for a paused topic, and fails, hangs, panics or ends its goroutine, stops no topic that is delivered.
// CONTRACT: C-32, C-33
func TestFailedProbeStopsNoOtherTopic(t *testing.T) {
	for name, probe := range map[string]func(context.Context) error{
		"fails":              func(context.Context) error { return errUnreachable },
		"hangs":              func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"panics":             func(context.Context) error { panic("an odd response") },
		"ends its goroutine": func(context.Context) error { runtime.Goexit(); return nil },
	} {
		virtual(t, name, func(t *testing.T) {
			store := storetest.NewMemory()
			var broken atomic.Bool
			sink := &sinktest.Func{
				Respond: func(_ context.Context, e *dispatcher.Event) error {
					if e.Topic == "down" {
						return errUnreachable
					}
					return nil
				},
				Check: func(ctx context.Context) error {
					if broken.Load() {
						return probe(ctx)
					}
					return nil
				},
			}
			d, stop := begin(t, store, sink, dispatcher.Config{Topics: []string{"down", "well"}})
			store.Add("well", 10)
			delivered(t, 10*time.Second, store, "well", 10)
			broken.Store(true)
			store.Add("down", 100)
			passes(t, time.Minute, "the other topic is paused", func() bool { return len(d.Snapshot().PausedTopics) == 1 })
			<-time.After(5 * time.Minute) // quiet, while probes are made
			for range 20 {
				store.Add("well", 1)
				left := func() bool { return store.Count("well", "pending")+store.Count("well", "processing") == 0 }
				passes(t, 2*time.Second, "an event of the quiet topic is delivered", left)
				<-time.After(7 * time.Second)
			}
			need.Want(t, 0, "the outage spent %d attempts", store.Attempts("down"))
			stop()
		})
	}
}

// A lease that cannot be extended cuts its delivery before another worker may have the row.
// CONTRACT: C-31
func TestKeeperCutsDeliveriesWithoutALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lease = 30 * time.Second
		store := storetest.NewMemory()
		store.Add("orders", 1)
		cut := make(chan error, 10)
		sink := &sinktest.Func{Respond: func(ctx context.Context, _ *dispatcher.Event) error {
			<-ctx.Done()
			cut <- context.Cause(ctx)
			return ctx.Err()
		}}
		began := time.Now()
		_, stop := begin(t, server{takes: func(verb string, _ []string) (time.Duration, error) {
			return map[string]time.Duration{"extend": time.Hour}[verb], nil
		}}.with(store), sink, dispatcher.Config{Lease: lease})
		if cause := <-cut; !errors.Is(cause, errLeaseOver) || time.Since(began) > lease {
			t.Errorf("after %v the delivery was cut by %v, want %v within the lease", time.Since(began), cause, errLeaseOver)
		}
		stop()
	})
}

// A statement that takes too long is tried again smaller, until it is small enough.
// CONTRACT: C-35
func TestSlowStatementsShrink(t *testing.T) {
	for name, perRow := range map[string]map[string]time.Duration{
		"claims":     {"claim": 500 * time.Millisecond},
		"write-back": {"nack": 100 * time.Millisecond},
	} {
		virtual(t, name, func(t *testing.T) {
			const events = 1000
			store := storetest.NewMemory()
			slow := &storetest.Hooked{Store: store, Before: func(ctx context.Context, c storetest.Call) error {
				select {
				case <-time.After(time.Duration(c.Rows()) * perRow[c.Verb]):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}}
			store.Add("orders", events)
			var tries sync.Map
			sink := &sinktest.Func{Respond: func(_ context.Context, e *dispatcher.Event) error {
				if _, again := tries.LoadOrStore(e.ID, true); again || perRow["nack"] == 0 {
					return nil
				}
				return dispatcher.RetryAfter(time.Millisecond, errContent)
			}}
			_, stop := begin(t, slow, sink, dispatcher.Config{Concurrency: 1000, BatchSize: 10_000, Lease: 2 * time.Minute})
			took := delivered(t, 2*time.Hour, store, "orders", events)
			t.Logf("delivered in %v", took)
			stop()
		})
	}
}

// A stop writes its outcomes when the database recovers a moment before it gives up.
// CONTRACT: C-30
func TestStopWritesOutcomesWhenTheDatabaseRecovers(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			store := storetest.NewMemory()
			store.Add("orders", 10)
			var down atomic.Bool
			reached := &storetest.Hooked{Store: store, Before: func(_ context.Context, c storetest.Call) error {
				if c.Verb == "nack" && down.Load() {
					return errors.New("the database is unreachable")
				}
				return nil
			}}
			sink := &sinktest.Func{Respond: func(context.Context, *dispatcher.Event) error {
				down.Store(true)
				return dispatcher.RetryAfter(time.Hour, errContent)
			}}
			_, stop := begin(t, reached, sink, dispatcher.Config{})
			<-time.After(25 * time.Second)
			time.AfterFunc(time.Second, func() { down.Store(false) })
			stop()
			need.Want(t, 0, "%d outcomes were lost", store.Count("orders", "processing"))
		})
	}
}

// What is written back while a claim is under way wakes the claim loop, if rows wait for it.
// CONTRACT: C-50
func TestWriteBackDuringAClaimWakesTheLoop(t *testing.T) {
	woken := 0
	f := testFlight(dispatcher.Config{Ordering: dispatcher.OrderingKey}, func() { woken++ })
	f.intake().add(claimOf("a", 1, 1), time.Now(), f.account.writes)
	before := f.account.writes
	d := begun(f, 1, time.Now())
	f.finish(d, make([]error, 1))
	f.written(d.rows)
	f.intake().add(dispatcher.Claimed{KeysWaiting: []string{"orders"}}, time.Now(), before)
	need.Want(t, 1, "the claim loop was woken %d times, want once", woken)
}
