package engine

import (
	"context"
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
