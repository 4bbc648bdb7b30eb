package engine_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// A clean stop lets deliveries end, gives back what was queued with its attempt, and leaves no lease.
//
// CONTRACT: C-30
func TestCleanStop(t *testing.T) {
	const events, running = 60, 4
	r := newRig(t)
	r.enqueue("orders", events)
	begun, end := make(chan struct{}, events), make(chan struct{})
	sink := &book{respond: func(ctx context.Context, _ *dispatcher.Event) error {
		begun <- struct{}{}
		<-end
		return ctx.Err() // none: the grace period is not over
	}}
	d := r.start(r.store(), sink, dispatcher.Config{Concurrency: running, BatchSize: events})
	for range running {
		receive(t, "the deliveries begin", begun)
	}
	if n := r.count("status = 'processing'"); n != events {
		t.Fatalf("%d of %d rows were claimed", n, events)
	}
	d.cancel()
	r.eventually("the queued rows are given back while deliveries still run", func() bool {
		return r.count("status = 'pending' and attempts = 0 and locked_by is null and next_attempt_at <= now()") == events-running
	})
	if !d.Snapshot().Draining {
		t.Error("the snapshot does not say that the dispatcher drains")
	}
	close(end)
	d.stop()
	if n := r.count("status = 'delivered' and attempts = 1"); n != running {
		t.Errorf("%d of the %d deliveries that were under way are written back", n, running)
	}
	if n := r.count("status = 'processing'"); n != 0 {
		t.Errorf("%d rows wait for their lease to expire after a clean stop", n)
	}
	// The next worker begins at once, at the first attempt.
	next := &book{}
	r.start(r.store(), next, dispatcher.Config{Lease: time.Hour})
	r.eventually("the next worker delivers the rest", func() bool { return r.count("status = 'delivered' and attempts = 1") == events })
}

// A stop in the middle of the work loses no row and repeats none.
//
// CONTRACT: C-30
func TestStopUnderLoad(t *testing.T) {
	const events = 3000
	r := newRig(t)
	r.enqueue("orders", events)
	sink := &book{batch: 3}
	for stops := 0; r.count("status = 'delivered'") < events; stops++ {
		if stops == 200 {
			t.Fatal("200 runs did not deliver all")
		}
		d := r.start(r.store(), sink, dispatcher.Config{Lease: time.Hour, BatchSize: 50})
		already, _ := sink.delivered()
		eventually(t, "the run delivers something", func() bool { n, _ := sink.delivered(); return n > already || n == events })
		d.stop()
		if n := r.count("status = 'processing'"); n != 0 {
			t.Fatalf("%d rows are leased after stop %d", n, stops)
		}
	}
	if n, times := sink.delivered(); n != events || times != events {
		t.Errorf("%d events were delivered %d times, want %d once each", n, times, events)
	}
	if n := r.count("attempts <> 1"); n != 0 {
		t.Errorf("%d rows spent an attempt on a stop", n)
	}
}

// A delivery that outlasts the grace period is cut. It may have arrived, so its attempt is spent:
// the same fencing token is never published twice.
//
// CONTRACT: C-27 C-30
func TestGracePeriodCutsDeliveries(t *testing.T) {
	for _, test := range []struct {
		name string
		hang func(context.Context)
	}{
		{"that notice", func(ctx context.Context) { <-ctx.Done() }},
		{"that do not return", func(context.Context) { select {} }},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t)
			r.enqueue("orders", 10)
			begun := make(chan struct{}, 10)
			sink := &book{respond: func(ctx context.Context, _ *dispatcher.Event) error {
				begun <- struct{}{}
				test.hang(ctx)
				return ctx.Err()
			}}
			log := &logBook{}
			d := r.start(r.store(), sink, dispatcher.Config{
				Concurrency: 2, GracePeriod: 50 * time.Millisecond, Logger: log.logger(), Backoff: dispatcher.PowerOfTwoBackoff(),
			})
			receive(t, "the first delivery begins", begun)
			receive(t, "the second delivery begins", begun)
			d.stop()
			if n := r.count(`status = 'pending' and attempts = 1 and next_attempt_at > now() and last_error like '%grace period%'`); n != 2 {
				t.Errorf("%d of the 2 rows that were cut wait for their second attempt, and say why", n)
			}
			if n := r.count("status = 'pending' and attempts = 0"); n != 8 {
				t.Errorf("%d of the 8 rows that were not begun are given back", n)
			}
			pgtest.Exec(r, "update outbox.outbox_events set next_attempt_at = now()")
			next := &book{}
			r.start(r.store(), next, dispatcher.Config{})
			r.eventually("the next worker delivers all", func() bool { return r.count("status = 'delivered'") == 10 })
			for id := range sink.begun() {
				if tokens := next.begun()[id]; !slices.Equal(tokens, []int{2}) {
					t.Errorf("event %s was published under 1 and then under %v, want 2", id, tokens)
				}
			}
			if lines := log.lines(`"level":"ERROR"`); len(lines) > 1 || len(lines) == 1 && !strings.Contains(lines[0], "leaving them behind") {
				t.Errorf("the log has errors: %v", lines)
			}
		})
	}
}

// A stop does not wait for ever for an unreachable database. What cannot be written is logged; the
// rows come back when their leases expire.
//
// CONTRACT: C-30
func TestStopEndsWhileTheDatabaseIsUnreachable(t *testing.T) {
	r := newRig(t)
	r.enqueue("orders", 3)
	store, log, done := &crashed{Store: r.store()}, &logBook{}, make(chan struct{}, 3)
	sink := &book{respond: func(context.Context, *dispatcher.Event) error {
		store.gone.Store(true)
		done <- struct{}{}
		return nil
	}}
	d := r.start(store, sink, dispatcher.Config{Lease: time.Second, Logger: log.logger()})
	for range 3 {
		receive(t, "the deliveries end", done)
	}
	d.stop()
	if lines := log.lines("stopped before every outcome"); len(lines) != 1 || !strings.Contains(lines[0], "3 outcomes are not written back: the process is gone") {
		t.Errorf("the log reports the lost outcomes: %v", lines)
	}
	r.start(r.store(), &book{}, dispatcher.Config{})
	r.eventually("another worker delivers them again", func() bool { return r.count("status = 'delivered' and attempts = 1 and suspicion > 1") == 3 })
}
