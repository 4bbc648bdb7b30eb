package replay_test

import (
	"context"
	"sync"
	"testing"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Overlapping runs, two replays and two discards with two processes for each, resolve each row once. Meanwhile the events
// that were put back become dead again: a dead row alone does not suffice to put it back.
// CONTRACT: C-42
func TestOverlappingReplaysResolveEachRowOnce(t *testing.T) {
	r := newRig(t)
	const rows = 400
	r.dead(rows, 0)
	var requests []config.ReplayRequest
	for i := range 4 {
		o := request()
		if i%2 > 0 {
			o.Action = config.ActionDiscard
		}
		r.begin(o)
		requests = append(requests, o)
	}
	work, failing := sync.WaitGroup{}, sync.WaitGroup{}
	stop := make(chan struct{})
	failing.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				r.makeDead("true")
			}
		}
	})
	for _, o := range requests {
		for range 2 {
			work.Go(func() {
				for {
					done, err := r.replays.Step(context.Background(), o.ID, 7)
					if err != nil {
						t.Error(err)
					}
					if done == 0 {
						return
					}
				}
			})
		}
	}
	work.Wait()
	close(stop)
	failing.Wait()
	r.makeDead("true")
	var deadAgain, discarded, skipped int64
	for _, o := range requests {
		p := r.observe(o)
		deadAgain, discarded = deadAgain+p.DeadAgain, discarded+p.Discarded
		for _, s := range p.Skipped {
			if s.Reason != status.SkippedResolved {
				t.Errorf("%d were skipped: %s", s.Count, s.Reason)
			}
			skipped += s.Count
		}
	}
	if deadAgain+discarded != rows || skipped != 3*rows {
		t.Errorf("%d dead again, %d were discarded and %d skipped, want %d for the first two and %d", deadAgain, discarded, skipped, rows, 3*rows)
	}
	if times, different := r.requeued(); int64(times) != deadAgain || int64(different) != deadAgain {
		t.Errorf("%d rows went back %d times, want %d", different, times, deadAgain)
	}
	for resolution, want := range map[string]int64{"replayed": deadAgain, "discarded": discarded, "open": deadAgain} {
		if n := pgtest.Value[int64](r, `select count(*) from outbox.outbox_dead_letters where coalesce(resolution, 'open') = $1`, resolution); n != want {
			t.Errorf("%d dead letters are %s, want %d: the open ones are those of events that are dead again", n, resolution, want)
		}
	}
}

// A batch is rolled back when its process is killed, and the next process continues.
func TestKilledBatchRolledBack(t *testing.T) {
	r := newRig(t)
	r.dead(20, 0)
	o := request()
	r.begin(o)
	r.step(o, 5, 5)
	hold, err := r.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Rollback(context.Background())
	if _, err := hold.Exec(t.Context(), `select from outbox.outbox_events where seq = 8 for update`); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() { _, err := r.replays.Step(context.Background(), o.ID, 5); failed <- err }()
	const waits = `from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database() and query like '%outbox_resolve%'`
	eventually(t, "the batch waits for the row", func() bool { return pgtest.Value[int](r, `select count(*) `+waits) == 1 })
	pgtest.Exec(r, `select pg_terminate_backend(pid) `+waits)
	if err := <-failed; err == nil {
		t.Fatal("the batch was done")
	}
	if err := hold.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.checkProgress(r.observe(o), "5 of 20 done, 5 not delivered yet")
	if n := pgtest.Value[int](r, `select count(*) from outbox.outbox_dead_letters where resolution is null`); n != 15 {
		t.Errorf("%d open dead letters, want 15", n)
	}
	if p, err := r.replays.Run(t.Context(), o.ID, replay.RunOptions{}); err != nil || p.Pending != 20 {
		t.Errorf("the next one: %v, %v", p, err)
	}
	if times, rows := r.requeued(); times != 20 || rows != 20 {
		t.Errorf("%d rows went back %d times, want 20", rows, times)
	}
}
