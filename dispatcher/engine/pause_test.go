package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// A pause gives back what has not begun, lets deliveries in flight end, and claims nothing for as long as it
// lasts. Probes and the comparison of the schema continue. When it ends, the next claim comes at once.
//
// CONTRACT: C-105
func TestPauseWhileRunning(t *testing.T) {
	const events, calls = 60, 4
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		var claims atomic.Int64
		store.claim = func(context.Context, int) error { claims.Add(1); return nil }
		store.enqueue("orders", events)
		end := make(chan struct{})
		var begun atomic.Int64
		sink := &stubSink{deliver: func(context.Context, *dispatcher.Event) error { begun.Add(1); <-end; return nil }}
		d, stop := begin(t, store, sink, dispatcher.Config{Concurrency: calls, BatchSize: events, Lease: 30 * time.Minute, PollInterval: time.Second})
		synctest.Wait()
		if n := begun.Load(); n != calls || store.count("orders", "processing") <= calls {
			t.Fatalf("%d deliveries began, and %d rows are claimed", n, store.count("orders", "processing"))
		}
		if d.Snapshot().Paused {
			t.Error("the snapshot says paused, before it is")
		}

		d.Pause()
		d.Pause() // as often as one likes
		passes(t, time.Second, "what has not begun is given back", func() bool { return store.count("orders", "pending") == events-calls })
		if n := store.attempts("orders"); n != calls {
			t.Errorf("%d attempts are spent, want those of the %d in flight", n, calls)
		}
		close(end)
		passes(t, time.Second, "what was in flight is written back", func() bool { return store.count("orders", "delivered") == calls })
		before := claims.Load()
		store.enqueue("refunds", 1)
		d.Wake()
		<-time.After(10 * time.Minute)
		if n := claims.Load() - before; n != 0 || begun.Load() != calls {
			t.Errorf("%d claims and %d deliveries while paused, want none", n, begun.Load()-calls)
		}
		if s := d.Snapshot(); !s.Paused || !s.Source.OK || time.Since(s.LookedAt) > checkEvery {
			t.Errorf("while paused: %+v", s)
		}

		d.Resume()
		synctest.Wait()
		if claims.Load() == before {
			t.Error("it did not claim at once after the pause")
		}
		passes(t, time.Minute, "all is delivered", func() bool { return store.count("orders", "delivered") == events })
		if d.Snapshot().Paused {
			t.Error("the snapshot says paused after Resume")
		}
		if n := store.attempts("orders"); n != events {
			t.Errorf("%d attempts for %d events", n, events)
		}
		d.Pause()
		stop() // also while it is paused
		if n := store.count("orders", "processing") + store.count("refunds", "processing"); n != 0 {
			t.Errorf("%d rows are left with a lease", n)
		}
	})
}

// Rows of a claim that was under way when the pause began are given back before a delivery begins.
//
// CONTRACT: C-105
func TestPauseDuringAClaim(t *testing.T) {
	for _, ordering := range []dispatcher.Ordering{dispatcher.OrderingNone, dispatcher.OrderingKey} {
		synctest.Test(t, func(t *testing.T) {
			store := newMemory()
			claiming, proceed := make(chan struct{}, 1), make(chan struct{})
			store.claim = func(context.Context, int) error {
				notify(claiming)
				<-proceed
				return nil
			}
			store.enqueue("orders", 10)
			var begun atomic.Int64
			sink := &stubSink{deliver: func(context.Context, *dispatcher.Event) error { begun.Add(1); return nil }}
			d, _ := begin(t, store, sink, dispatcher.Config{Ordering: ordering})
			<-claiming
			d.Pause()
			close(proceed)
			<-time.After(time.Minute)
			if n := store.count("orders", "pending"); n != 10 || begun.Load() != 0 || store.attempts("orders") != 0 {
				t.Errorf("%s: %d of 10 rows wait, %d deliveries began, %d attempts are spent", ordering, n, begun.Load(), store.attempts("orders"))
			}
			d.Resume()
			passes(t, time.Minute, "all is delivered", func() bool { return store.count("orders", "delivered") == 10 })
		})
	}
}

// A dispatcher may be paused before it runs, and while RunOnce runs.
func TestPauseAndRunOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		store.enqueue("orders", 10)
		var d *Dispatcher
		sink := &stubSink{deliver: func(context.Context, *dispatcher.Event) error { d.Pause(); return nil }}
		d, err := New(store, sink, dispatcher.Config{Concurrency: 1, BatchSize: 1})
		if err != nil {
			t.Fatal(err)
		}
		d.Pause()
		if got, err := d.RunOnce(t.Context(), 10); err == nil || got != (Outcome{}) {
			t.Errorf("paused before: %+v, %v; want an error", got, err)
		}
		d.Resume()
		got, err := d.RunOnce(t.Context(), 10)
		if err == nil || got.Delivered != 1 {
			t.Errorf("paused by the first delivery: %+v, %v; want one delivered, and an error", got, err)
		}
		if n := store.count("orders", "pending"); n != 9 || store.attempts("orders") != 1 {
			t.Errorf("%d rows wait, %d attempts are spent", n, store.attempts("orders"))
		}
	})
}

// What is queued is delivered as soon as the pause is over, also when nothing else happens.
//
// CONTRACT: C-39
func TestRequestedPauseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refusedAt, next time.Time
		var mu sync.Mutex
		sink := &stubSink{deliver: func(context.Context, *dispatcher.Event) error {
			defer func() { <-time.After(100 * time.Millisecond) }()
			mu.Lock()
			defer mu.Unlock()
			switch {
			case refusedAt.IsZero():
				refusedAt = time.Now().Add(100 * time.Millisecond)
				return dispatcher.DestinationFault(dispatcher.RetryAfter(30*time.Second, errFault))
			case next.IsZero():
				next = time.Now()
			}
			return nil
		}}
		_, stop := begin(t, &endless{}, sink, dispatcher.Config{Topics: []string{"orders"}, Concurrency: 1})
		<-time.After(time.Minute)
		stop()
		if wait := next.Sub(refusedAt); wait < 30*time.Second || wait > 30*time.Second+10*time.Millisecond {
			t.Errorf("the next call began %v after a pause of 30 s was requested", wait)
		}
	})
}

// When the destination requests a pause, and nothing else of the topic is delivered, no call of the topic begins before.
// Other topics flow.
//
// CONTRACT: C-39
func TestRequestedPause(t *testing.T) {
	for name, test := range map[string]struct {
		pause, least time.Duration
		concurrency  int
	}{
		"fixed":          {pause: 30 * time.Second, least: 30 * time.Second},
		"auto":           {pause: 30 * time.Second, least: 30 * time.Second, concurrency: dispatcher.Auto},
		"a minute, most": {pause: time.Hour, least: mostRequestedWait},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var last time.Time
				others, pauses := 0, 0
				sink := &stubSink{}
				sink.deliver = func(_ context.Context, e *dispatcher.Event) error {
					if e.Topic == "others" {
						<-time.After(100 * time.Millisecond)
						mu.Lock()
						defer mu.Unlock()
						others++
						return nil
					}
					<-time.After(10 * time.Millisecond)
					mu.Lock()
					defer mu.Unlock()
					now := time.Now()
					if since := now.Sub(last); !last.IsZero() && since > time.Second {
						if pauses++; since < test.least {
							t.Errorf("a call began %v after the destination requested a pause of %v", since, test.pause)
						}
					}
					last = now
					return dispatcher.DestinationFault(dispatcher.RetryAfter(test.pause, errFault))
				}
				d, stop := begin(t, &endless{}, sink, dispatcher.Config{Topics: []string{"orders", "others"}, Concurrency: test.concurrency, MaxConcurrency: 4})
				<-time.After(10 * time.Second)
				s := d.Snapshot()
				mu.Lock()
				if others < 200 {
					t.Errorf("%d events of the other topic in 10 s", others)
				}
				mu.Unlock()
				if at := s.TopicLimits; len(at) == 0 || at[len(at)-1].Topic != "orders" || at[len(at)-1].LimitedBy != dispatcher.LimitedByDestination {
					t.Errorf("limited are %v", at)
				}
				<-time.After(2 * time.Minute)
				stop()
				if pauses == 0 {
					t.Error("no call began after the pause")
				}
			})
		})
	}
}

// While others of the topic are delivered, one that is refused with a pause waits alone.
//
// CONTRACT: C-39
func TestRequestedPauseOfOneEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n, delivered atomic.Int64
		sink := &stubSink{deliver: func(context.Context, *dispatcher.Event) error {
			<-time.After(100 * time.Millisecond)
			if n.Add(1)%10 == 0 {
				return dispatcher.DestinationFault(dispatcher.RetryAfter(30*time.Second, errFault))
			}
			delivered.Add(1)
			return nil
		}}
		_, stop := begin(t, &endless{}, sink, dispatcher.Config{Topics: []string{"orders"}})
		<-time.After(10 * time.Second)
		stop()
		if n := delivered.Load(); n < 1300 {
			t.Errorf("%d events were delivered in 10 s, want all but a tenth of 1,600", n)
		}
	})
}
