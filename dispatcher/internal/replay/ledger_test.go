package replay_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/retention"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

var seeds = flag.Int("replay.seeds", 5, "how many seeds TestOperationsCountWhatBecameOfTheirEvents draws from")

// What operations count as delivered and as dead again is what became of the events that they put back last, whatever happens
// meanwhile: other operations, sweeps that remove rows, discards, stops, events that become dead again, and calls that are cut off.
// CONTRACT: C-42, C-60
func TestOperationsCountWhatBecameOfTheirEvents(t *testing.T) {
	for seed := range *seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			l := newLedger(t, uint64(seed))
			for range 80 {
				l.act()
			}
			l.finish()
			l.check()
		})
	}
}

// ledger draws what happens, and has the database note which operation put an event back, and what became of it.
type ledger struct {
	rig
	rand       *rand.Rand
	replays    *replay.Replays // its calls may be cut off
	sweeper    *retention.Sweeper
	operations []replay.Request
}

func newLedger(t *testing.T, seed uint64) *ledger {
	r := newRig(t)
	pgtest.Exec(r, `create table public.put_back (n bigserial, event_id uuid, replay_id uuid);
		create table public.became (replay_id uuid, what text);
		create function public.note_put_back() returns trigger language plpgsql security definer as
			$$ begin insert into public.put_back (event_id, replay_id) values (new.event_id, new.replay_id); return null; end $$;
		create trigger note_put_back after update on outbox.outbox_dead_letters for each row
			when (old.replay_state = 'waiting' and new.replay_state = 'requeued') execute function public.note_put_back()`)
	r.dead(150, 20)
	return &ledger{
		rig: r, rand: rand.New(rand.NewPCG(seed, 1)),
		replays: replay.New(pgtest.Pool(t, pgtest.Login(t, r.Pool, migrations.ReplayLogin)), replay.Options{}),
		sweeper: retention.New(r.Pool, retention.Options{Delivered: 7 * 24 * time.Hour, DeadResolved: 30 * 24 * time.Hour}),
	}
}

func (l *ledger) act() {
	l.Helper()
	switch draw := l.rand.IntN(20); {
	case draw < 2 || len(l.operations) == 0:
		o := request()
		o.Limit, o.Canary, o.AbortAt = 10+l.rand.IntN(40), 5*l.rand.IntN(2), 50+50*l.rand.IntN(2)
		if begin := func(ctx context.Context) error { return second(l.replays.Begin(ctx, o)) }; !l.mayBeCut(begin) {
			if err := begin(l.Context()); err != nil { // again: it may have begun
				l.Fatal(err)
			}
		}
		l.operations = append(l.operations, o)
	case draw < 9:
		o := l.one()
		l.mayBeCut(func(ctx context.Context) error { return second(l.replays.Step(ctx, o.ID, 1+l.rand.IntN(15))) })
	case draw < 13:
		l.deliverSome(1 + l.rand.IntN(15))
	case draw < 15:
		l.makeDeadAgain(1 + l.rand.IntN(8))
	case draw < 17:
		o := l.one()
		l.mayBeCut(func(ctx context.Context) error { return second(l.replays.Observe(ctx, o.ID)) })
	case draw < 18:
		l.sweep()
	case draw < 19:
		o := request()
		o.Action, o.Rate, o.Limit = replay.ActionDiscard, 0, 3
		l.mayBeCut(func(ctx context.Context) error { return second(l.replays.Begin(ctx, o)) })
	default:
		o := l.one()
		l.mayBeCut(func(ctx context.Context) error { return second(l.replays.Stop(ctx, o.ID, "drawn")) })
	}
}

func (l *ledger) one() replay.Request { return l.operations[l.rand.IntN(len(l.operations))] }

// mayBeCut does something that is cut off in one case of three, and reports whether it ended.
func (l *ledger) mayBeCut(do func(context.Context) error) bool {
	l.Helper()
	ctx, cancel := l.Context(), func() {}
	if l.rand.IntN(3) == 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(l.rand.IntN(5000))*time.Microsecond)
	}
	defer cancel()
	err := do(ctx)
	need.Must(l, err == nil || errors.Is(err, context.DeadlineExceeded), "%v", err)
	return err == nil
}

// pending are events that an operation put back, n at most.
func (l *ledger) pending(n int) []uuid.UUID {
	l.Helper()
	return pgtest.Value[[]uuid.UUID](l.rig, `select coalesce(array_agg(id), '{}') from (select id from outbox.outbox_events where status = 'pending' order by random() limit $1) as e`, n)
}

// note writes down what becomes of events.
func (l *ledger) note(what string, events []uuid.UUID) {
	l.Helper()
	pgtest.Exec(l.rig, `insert into public.became select (select replay_id from public.put_back where event_id = e.id order by n desc limit 1), $1
		from unnest($2::uuid[]) as e (id)`, what, events)
}

func (l *ledger) deliverSome(n int) {
	l.Helper()
	events := l.pending(n)
	l.note("delivered", events)
	pgtest.Exec(l.rig, `update outbox.outbox_events set status = 'delivered' where id = any ($1)`, events)
}

func (l *ledger) makeDeadAgain(n int) {
	l.Helper()
	events := l.pending(n)
	l.note("dead again", events)
	for _, id := range events {
		l.makeDead("id = '" + id.String() + "'")
	}
}

// sweep removes half of the delivered rows, as a sweep in eight days would.
func (l *ledger) sweep() {
	l.Helper()
	pgtest.Exec(l.rig, `with old as (
			update outbox.outbox_events set updated_at = now() - interval '8 days' where status = 'delivered' and seq % 2 = 0 returning id
		)
		update outbox.outbox_dead_letters set resolved_at = now() - interval '8 days' where event_id in (select id from old)`)
	pgtest.Exec(l.rig, `update outbox.outbox_sweeps set next_run = now()`)
	ran, err := l.sweeper.Sweep(l.Context())
	need.Must(l, ran && err == nil, "swept %t, %v", ran, err)
}

// finish delivers what is put back until all operations are over. One may wait for another's earlier events of a key.
func (l *ledger) finish() {
	l.Helper()
	for round := 0; ; round++ {
		open := ""
		for _, o := range l.operations {
			if p := l.observe(o); p.FinishedAt.IsZero() {
				open = p.String()
			}
			need.OK(l, need.Err(l.replays.Step(l.Context(), o.ID, 50)))
			l.deliverSome(1000)
		}
		switch {
		case open == "":
			return
		case round > 100:
			l.Fatalf("one does not end: %s", open)
		}
	}
}

func (l *ledger) check() {
	l.Helper()
	all := int64(0)
	for _, o := range l.operations {
		p := l.observe(o)
		noted := func(what string) int64 {
			return pgtest.Value[int64](l.rig, `select count(*) from public.became where replay_id = $1 and what = $2`, o.ID, what)
		}
		delivered, again := noted("delivered"), noted("dead again")
		need.That(l, p.Delivered == delivered && p.DeadAgain == again, "%s, and of what it put back %d were delivered and %d dead again", p, delivered, again)
		all += p.Delivered
	}
	need.That(l, all != 0, "no event was delivered: this proves nothing")
}

// Operations that begin at once on the same dead letters claim each one once, and two processes of a replay put back each row
// once. Meanwhile the events that were put back become dead again: a dead row alone does not suffice to put it back.
// CONTRACT: C-42
func TestOverlappingOperationsClaimEachDeadLetterOnce(t *testing.T) {
	r := newRig(t)
	const rows = 400
	r.dead(rows, 0)
	requests := []replay.Request{request(), request(), request(), request()}
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
		o.AbortAt, o.Rate = 100, replay.MaxRate
		if i == 3 {
			o.Action = replay.ActionDiscard
		}
		work.Go(func() {
			need.Want(t, nil, "%v", need.Err(r.replays.Begin(context.Background(), *o)))
			var both sync.WaitGroup
			for range 2 {
				both.Go(func() {
					for done := 1; done > 0; {
						var err error
						done, err = r.replays.Step(context.Background(), o.ID, 7)
						need.Want(t, nil, "%v", err)
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
			need.Want(t, status.SkippedClaimed, "%d were skipped: %s", s.Reason, s.Count)
			claimed += s.Count
		}
		need.That(t, p.Waiting+p.Pending == 0, "it ended with %v", p)
	}
	// Those that were dead again during the work may have been claimed and put back once more.
	pgtest.Want[int64](r, deadAgain, "%d dead letters are replayed, and %d events dead again", `select count(*) from outbox.outbox_dead_letters where resolution = 'replayed'`)
	pgtest.Want[int64](r, discarded, "%d dead letters are discarded, and %d are counted", `select count(*) from outbox.outbox_dead_letters where resolution = 'discarded'`)
	times, _ := r.requeued()
	need.That(t, int64(times) == deadAgain, "rows went back %d times, want %d", times, deadAgain)
	need.That(t, deadAgain+discarded >= rows, "%d dead again, %d discarded and %d claimed, want each of %d at least", deadAgain, discarded, claimed, rows)
}

// A batch is rolled back when its process is killed, and the next process continues.
func TestKilledBatchRolledBack(t *testing.T) {
	r := newRig(t)
	r.dead(20, 0)
	o := request()
	r.begin(o)
	r.step(o, 5, 5)
	hold := pgtest.Begin(r, `select from outbox.outbox_events where seq = 8 for update`)
	failed := make(chan error, 1)
	go func() { _, err := r.replays.Step(context.Background(), o.ID, 5); failed <- err }()
	const waits = `from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database() and query like '%outbox_replay_step%'`
	eventually(t, "the batch waits for the row", func() bool { return pgtest.Value[int](r, `select count(*) `+waits) == 1 })
	pgtest.Exec(r, `select pg_terminate_backend(pid) `+waits)
	need.Must(t, <-failed != nil, "the batch was done")
	need.OK(t, hold.Rollback(t.Context()))
	r.checkProgress(r.observe(o), "5 of 20 put back, 0 delivered, 5 not delivered yet")
	pgtest.Want(r, 15, "%d open dead letters, want 15", `select count(*) from outbox.outbox_dead_letters where resolution is null`)
	if p, err := r.replays.Run(t.Context(), o.ID, replay.RunOptions{}); err != nil || p.Pending != 20 {
		t.Errorf("the next one: %v, %v", p, err)
	}
	times, rows := r.requeued()
	need.That(t, times == 20 && rows == 20, "%d rows went back %d times, want 20", rows, times)
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
	r.checkProgress(r.begin(next), "0 of 3 put back, 0 delivered, 3 skipped: claimed")
	pgtest.Exec(r, `update outbox.outbox_replays set seen_at = now() - interval '61 seconds' where id = $1`, left.ID)
	next = request()
	next.Filter.IDs = []string{"3", "4", "5"}
	hold, err := r.Begin(t.Context())
	need.OK(t, err)
	defer hold.Rollback(context.Background())
	if _, err := hold.Exec(t.Context(), `select outbox.outbox_replay_step($1, 2)`, left.ID); err != nil { // of 3 and 4
		t.Fatal(err)
	}
	begun := make(chan status.Replay, 1)
	go func() {
		p, err := r.replays.Begin(context.Background(), next)
		need.Want(t, nil, "%v", err)
		begun <- p
	}()
	eventually(t, "the other one waits", func() bool {
		return pgtest.Value[int](r, `select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database() and query like '%outbox_replay_begin%'`) == 1
	})
	need.OK(t, hold.Commit(t.Context()))
	r.checkProgress(<-begun, "0 of 3 put back, 0 delivered, 2 skipped: claimed")
	pgtest.Exec(r, `update outbox.outbox_replays set seen_at = now() + interval '2 hours' where id = $1`, left.ID)
	rest := request()
	r.checkProgress(r.begin(rest), "0 of 6 put back, 0 delivered, 1 skipped: claimed")
	r.step(left, 10, 0)
	r.checkProgress(r.observe(left), "4 of 10 put back, 0 delivered, 4 not delivered yet, 6 skipped: claimed")
	r.step(next, 10, 1)
	r.step(rest, 10, 5)
	r.deliver("true")
	if p := r.observe(left); p.Delivered != 4 || p.FinishedAt.IsZero() {
		t.Errorf("at the end %+v", p)
	}
	times, rows := r.requeued()
	need.That(t, times == 10 && rows == 10, "%d rows went back %d times, want 10", rows, times)
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
	hold := pgtest.Begin(r, `update outbox.outbox_dead_letters set replay_id = $1 where id = 1`, next.ID)
	done := make(chan error, 1)
	go func() { _, err := r.replays.Step(context.Background(), left.ID, 3); done <- err }()
	eventually(t, "the step waits for the dead letter", func() bool {
		return pgtest.Value[int](r, `select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database() and query like '%outbox_replay_step%'`) == 1
	})
	need.OK(t, hold.Commit(t.Context()))
	need.OK(t, <-done)
	times, rows := r.requeued()
	need.That(t, times == 2 && rows == 2, "%d rows went back %d times, want the 2 that are not claimed", rows, times)
	if n := pgtest.Value[int](r, `select count(*) from outbox.outbox_dead_letters where id = 1 and resolution is null and replay_state = 'waiting'`); n != 1 {
		t.Error("the dead letter of the other operation does not wait for it")
	}
}

// A step chooses what it moves by reading that alone, whatever the number of keys, of dead letters that others have left and of
// what it has done before, and whatever the planner knows of the tables. In addition it costs the updates.
// CONTRACT: C-42
func TestStepReadsItsBatchAlone(t *testing.T) {
	for name, test := range map[string]struct {
		keys    int
		journal bool
	}{
		"1 key": {1, false}, "10 keys": {10, false}, "100 keys": {100, false}, "10000 keys": {10_000, false},
		"1 key, journal on": {1, true}, "10000 keys, journal on": {10_000, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			withoutAutovacuum(r)
			r.dead(10_000, test.keys)
			one, compared := oneConnection(r, test.journal)
			replays := replay.New(one, replay.Options{})
			other, o := request(), request()
			other.Limit = 2000 // it waits at the front, and no process runs it
			for _, o := range []replay.Request{other, o} {
				need.OK(t, need.Err(replays.Begin(t.Context(), o)))
			}
			pgtest.Exec(r, `update outbox.outbox_replays set seen_at = now() - interval '2 minutes' where id = $1`, other.ID)
			step := func(what string) {
				t.Helper()
				pgtest.HandIn(t, r.Pool) // what it read until now
				rows0, pages0 := r.reads(one)
				compared()
				done, err := replays.Step(t.Context(), o.ID, 500)
				need.Must(t, err == nil && done == 500, "a step of 500 did %d, %v", done, err)
				rows, pages := r.reads(one)
				rows, pages = (rows-rows0)/500, (pages-pages0)/500
				t.Logf("%s: %d rows and %d pages for each dead letter", what, rows, pages)
				need.That(t, rows <= 12 && pages <= 60, "%s: a step read %d rows and %d pages for each dead letter, want 12 and 60 at most", what, rows, pages)
				need.Want[int64](t, 0, "%s: a step compared rows one with another, %d times", compared(), what)
			}
			step("never analyzed")
			step("never analyzed")
			pgtest.Exec(r, `analyze outbox.outbox_events, outbox.outbox_dead_letters`)
			step("analyzed")
			step("analyzed")
			r.makeDead("seq % 4 = 0")
			pgtest.HandIn(t, r.Pool) // what that read
			rows0, _ := r.reads(one)
			need.OK(t, need.Err(replays.Observe(t.Context(), o.ID)))
			if rows, _ := r.reads(one); rows-rows0 > 5*2000 {
				t.Errorf("a look at 2000 events, of which 500 have an outcome, read %d rows", rows-rows0)
			}
		})
	}
}

// reads are the rows and the pages that were read of the outbox's tables.
func (r rig) reads(one *pgxpool.Pool) (rows, pages int64) {
	r.Helper()
	pgtest.HandIn(r.T, one)
	return pgtest.Value[int64](r, `select sum(idx_tup_read)::bigint + (select sum(seq_tup_read) from pg_stat_user_tables where relname ~ '^outbox_(events|dead)')::bigint
			from pg_stat_user_indexes where relname ~ '^outbox_(events|dead)'`),
		pgtest.Value[int64](r, `select sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0))::bigint from pg_statio_user_tables where relname ~ '^outbox_(events|dead)'`)
}

// To begin and to dry run look up once each dead letter, its event and later dead letters of the event. Both hold even when
// the tables were never analyzed. To stop reads none.
func TestBeginReadsEachDeadLetterOnce(t *testing.T) {
	for name, journal := range map[string]bool{"journal off": false, "journal on": true} {
		t.Run(name, func(t *testing.T) { beginReads(newRig(t), journal) })
	}
}

func beginReads(r rig, journal bool) {
	t := r.T
	withoutAutovacuum(r)
	const n = 20_000
	r.dead(n, 2000)
	pgtest.Exec(r, `update outbox.outbox_dead_letters set dead_at = dead_at + make_interval(secs => (seq * 7919) % 10007)`) // groups interleave
	pgtest.Exec(r, `vacuum full outbox.outbox_dead_letters`)
	one, compared := oneConnection(r, journal)
	replays := replay.New(one, replay.Options{})
	pgtest.HandIn(t, r.Pool) // what it did until now
	o, discard, reopen := request(), request(), request()
	discard.Action, reopen.Action = replay.ActionDiscard, replay.ActionReopen
	for _, test := range []struct {
		what        string
		do          func() error
		rows, pages int64
	}{
		{"a dry run", func() error { return second(replays.DryRun(t.Context(), o)) }, 4, 8},
		{"to begin", func() error { return second(replays.Begin(t.Context(), o)) }, 6, 28}, // one row for the time of each event
		{"to stop", func() error { return second(replays.Stop(t.Context(), o.ID, "enough")) }, 0, 0},
		{"a discard", func() error { return second(replays.Begin(t.Context(), discard)) }, 4, 40},
		{"a reopen", func() error { return second(replays.Begin(t.Context(), reopen)) }, 10, 40},
	} {
		rows0, pages0 := r.reads(one)
		need.OK(t, test.do())
		rows, pages := r.reads(one)
		t.Logf("%s: %.1f rows and %.1f pages for each dead letter", test.what, float64(rows-rows0)/n, float64(pages-pages0)/n)
		need.That(t, rows-rows0 <= test.rows*n+n/10 && pages-pages0 <= test.pages*n, // a few lookups are the statement's
			"%s reads %d rows and %d pages, want at most %d and %d for each of %d dead letters", test.what, rows-rows0, pages-pages0, test.rows, test.pages, n)
		times := compared()
		need.That(t, times <= n, "%s compares rows one with another, %d times", test.what, times)
	}
}

// oneConnection returns a pool of one, whose statistics HandIn can hand in, and how many rows its joins, of functions and triggers
// too, have compared and dropped since the last call. With the journal it turns that on.
func oneConnection(r rig, journal bool) (*pgxpool.Pool, func() int64) {
	pgtest.Exec(r, `select outbox.outbox_journal_set($1)`, journal)
	config := r.Config()
	config.MaxConns = 1
	compared := int64(0)
	config.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		for _, found := range regexp.MustCompile(`Rows Removed by Join Filter: (\d+)`).FindAllStringSubmatch(n.Message, -1) {
			rows, _ := strconv.ParseInt(found[1], 10, 64)
			compared += rows
		}
	}
	one, err := pgxpool.NewWithConfig(r.Context(), config)
	need.OK(r, err)
	r.Cleanup(one.Close)
	for _, setting := range []string{"log_min_duration = 0", "log_nested_statements = on", "log_analyze = on", "log_timing = off", "log_level = notice"} {
		pgtest.Exec(pgtest.DB{TB: r, Pool: one}, `load 'auto_explain'; set auto_explain.`+setting)
	}
	return one, func() (n int64) { n, compared = compared, 0; return n }
}

func withoutAutovacuum(r rig) {
	for _, table := range []string{"outbox_events", "outbox_dead_letters", "outbox_replays"} {
		pgtest.Exec(r, `alter table outbox.`+table+` set (autovacuum_enabled = off)`)
	}
}
