package replay_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Operations that begin at once on the same dead letters claim each one once, and two processes of a replay put back each row
// once. Meanwhile the events that were put back become dead again: a dead row alone does not suffice to put it back.
// CONTRACT: C-42
func TestOverlappingOperationsClaimEachDeadLetterOnce(t *testing.T) {
	r := newRig(t)
	const rows = 400
	r.dead(rows, 0)
	requests := []config.ReplayRequest{request(), request(), request(), request()}
	for n := range rows {
		for i := range requests[1:] {
			if n/100 == i || n/100 == i+1 {
				requests[i+1].Filter.IDs = append(requests[i+1].Filter.IDs, fmt.Sprint(n+1))
			}
		}
	}
	var work, failing sync.WaitGroup
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
	for i := range requests {
		o := &requests[i]
		o.AbortAt, o.Rate = 100, config.MaxReplayRate
		if i == 3 {
			o.Action = config.ActionDiscard
		}
		work.Go(func() {
			if _, err := r.replays.Begin(context.Background(), *o); err != nil {
				t.Error(err)
			}
			var both sync.WaitGroup
			for range 2 {
				both.Go(func() {
					for done := 1; done > 0; {
						var err error
						if done, err = r.replays.Step(context.Background(), o.ID, 7); err != nil {
							t.Error(err)
						}
					}
				})
			}
			both.Wait()
		})
	}
	work.Wait()
	close(stop)
	failing.Wait()
	r.makeDead("true")
	var deadAgain, discarded, claimed int64
	for _, o := range requests {
		p := r.observe(o)
		deadAgain, discarded = deadAgain+p.DeadAgain, discarded+p.Discarded
		for _, s := range p.Skipped {
			if s.Reason != status.SkippedClaimed {
				t.Errorf("%d were skipped: %s", s.Count, s.Reason)
			}
			claimed += s.Count
		}
		if p.Waiting+p.Pending > 0 {
			t.Errorf("it ended with %v", p)
		}
	}
	// Those that were dead again during the work may have been claimed and put back once more.
	if n := pgtest.Value[int64](r, `select count(*) from outbox.outbox_dead_letters where resolution = 'replayed'`); n != deadAgain {
		t.Errorf("%d dead letters are replayed, and %d events dead again", n, deadAgain)
	}
	if n := pgtest.Value[int64](r, `select count(*) from outbox.outbox_dead_letters where resolution = 'discarded'`); n != discarded {
		t.Errorf("%d dead letters are discarded, and %d are counted", n, discarded)
	}
	if times, _ := r.requeued(); int64(times) != deadAgain {
		t.Errorf("rows went back %d times, want %d", times, deadAgain)
	}
	if deadAgain+discarded < rows {
		t.Errorf("%d dead again, %d discarded and %d claimed, want each of %d at least", deadAgain, discarded, claimed, rows)
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
	const waits = `from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database() and query like '%outbox_replay_step%'`
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

// A replay that no process has run for a minute loses what still waits to the next operation that chooses it, and says so when it
// is continued. A process that continues it meanwhile puts back what the other has not claimed.
// CONTRACT: C-42
func TestUnrunReplayLosesItsClaims(t *testing.T) {
	r := newRig(t)
	r.dead(10, 0)
	left, next := request(), request()
	r.begin(left)
	r.step(left, 2, 2)
	next.Filter.IDs = []string{"3", "4", "5"}
	r.checkProgress(r.begin(next), "3 of 3 done, 3 skipped: claimed")
	pgtest.Exec(r, `update outbox.outbox_replays set seen_at = now() - interval '61 seconds' where id = $1`, left.ID)
	next = request()
	next.Filter.IDs = []string{"3", "4", "5"}
	hold, err := r.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Rollback(context.Background())
	if _, err := hold.Exec(t.Context(), `select outbox.outbox_replay_step($1, 2)`, left.ID); err != nil { // of 3 and 4
		t.Fatal(err)
	}
	begun := make(chan status.Replay, 1)
	go func() {
		p, err := r.replays.Begin(context.Background(), next)
		if err != nil {
			t.Error(err)
		}
		begun <- p
	}()
	eventually(t, "the other one waits", func() bool {
		return pgtest.Value[int](r, `select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database() and query like '%outbox_replay_begin%'`) == 1
	})
	if err := hold.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.checkProgress(<-begun, "2 of 3 done, 2 skipped: claimed")
	pgtest.Exec(r, `update outbox.outbox_replays set seen_at = now() + interval '2 hours' where id = $1`, left.ID)
	rest := request()
	r.checkProgress(r.begin(rest), "1 of 6 done, 1 skipped: claimed")
	r.step(left, 10, 0)
	r.checkProgress(r.observe(left), "10 of 10 done, 4 not delivered yet, 6 skipped: claimed")
	r.step(next, 10, 1)
	r.step(rest, 10, 5)
	r.deliver("true")
	if p := r.observe(left); p.Delivered != 4 || p.FinishedAt.IsZero() {
		t.Errorf("at the end %+v", p)
	}
	if times, rows := r.requeued(); times != 10 || rows != 10 {
		t.Errorf("%d rows went back %d times, want 10", rows, times)
	}
}

// A dead letter that another operation claims while a step waits for it is left to that operation.
// CONTRACT: C-42
func TestStepLeavesWhatAnotherClaimsMeanwhile(t *testing.T) {
	r := newRig(t)
	r.dead(3, 0)
	left, next := request(), request()
	r.begin(left)
	next.Filter.IDs = []string{"1"}
	r.begin(next) // claims nothing, since the first has all
	hold, err := r.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Rollback(context.Background())
	if _, err := hold.Exec(t.Context(), `update outbox.outbox_dead_letters set replay_id = $1 where id = 1`, next.ID); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { _, err := r.replays.Step(context.Background(), left.ID, 3); done <- err }()
	eventually(t, "the step waits for the dead letter", func() bool {
		return pgtest.Value[int](r, `select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database() and query like '%outbox_replay_step%'`) == 1
	})
	if err := hold.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if times, rows := r.requeued(); times != 2 || rows != 2 {
		t.Errorf("%d rows went back %d times, want the 2 that are not claimed", rows, times)
	}
	if n := pgtest.Value[int](r, `select count(*) from outbox.outbox_dead_letters where id = 1 and resolution is null and replay_state = 'waiting'`); n != 1 {
		t.Error("the dead letter of the other operation does not wait for it")
	}
}
