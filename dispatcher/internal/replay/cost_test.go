package replay_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// A step chooses what it moves by reading that alone, whatever the number of keys, of dead letters that others have left and of
// what it has done before, and whatever the planner knows of the tables. In addition it costs the updates.
// CONTRACT: C-42
func TestStepReadsItsBatchAlone(t *testing.T) {
	for _, keys := range []int{1, 10, 100, 10_000} {
		t.Run(fmt.Sprint(keys, " keys"), func(t *testing.T) {
			r := newRig(t)
			withoutAutovacuum(r)
			r.dead(10_000, keys)
			one := oneConnection(r)
			replays := replay.New(one, replay.Options{})
			other, o := request(), request()
			other.Limit = 2000 // it waits at the front, and no process runs it
			for _, o := range []config.ReplayRequest{other, o} {
				if _, err := replays.Begin(t.Context(), o); err != nil {
					t.Fatal(err)
				}
			}
			pgtest.Exec(r, `update outbox.outbox_replays set seen_at = now() - interval '2 minutes' where id = $1`, other.ID)
			step := func(what string) {
				t.Helper()
				pgtest.HandIn(t, r.Pool) // what it read until now
				rows0, pages0 := r.reads(one)
				if done, err := replays.Step(t.Context(), o.ID, 500); err != nil || done != 500 {
					t.Fatalf("a step of 500 did %d, %v", done, err)
				}
				rows, pages := r.reads(one)
				rows, pages = (rows-rows0)/500, (pages-pages0)/500
				t.Logf("%s, %d keys: %d rows and %d pages for each dead letter", what, keys, rows, pages)
				if rows > 12 || pages > 60 {
					t.Errorf("%s: a step read %d rows and %d pages for each dead letter, want 12 and 60 at most", what, rows, pages)
				}
			}
			step("never analyzed")
			step("never analyzed")
			pgtest.Exec(r, `analyze outbox.outbox_events, outbox.outbox_dead_letters`)
			step("analyzed")
			step("analyzed")
			r.makeDead("seq % 4 = 0")
			pgtest.HandIn(t, r.Pool) // what that read
			rows0, _ := r.reads(one)
			if _, err := replays.Observe(t.Context(), o.ID); err != nil {
				t.Fatal(err)
			}
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
	r := newRig(t)
	withoutAutovacuum(r)
	const n = 20_000
	r.dead(n, 2000)
	pgtest.Exec(r, `update outbox.outbox_dead_letters set dead_at = dead_at + make_interval(secs => (seq * 7919) % 10007)`) // groups interleave
	pgtest.Exec(r, `vacuum full outbox.outbox_dead_letters`)
	one := oneConnection(r)
	replays := replay.New(one, replay.Options{})
	pgtest.HandIn(t, r.Pool) // what it did until now
	o := request()
	for _, test := range []struct {
		what        string
		do          func() error
		rows, pages int64
	}{
		{"a dry run", func() error { return second(replays.DryRun(t.Context(), o)) }, 4, 8},
		{"to begin", func() error { return second(replays.Begin(t.Context(), o)) }, 4, 25},
		{"to stop", func() error { return second(replays.Stop(t.Context(), o.ID, "enough")) }, 0, 0},
	} {
		rows0, pages0 := r.reads(one)
		if err := test.do(); err != nil {
			t.Fatal(err)
		}
		rows, pages := r.reads(one)
		t.Logf("%s: %.1f rows and %.1f pages for each dead letter", test.what, float64(rows-rows0)/n, float64(pages-pages0)/n)
		if rows-rows0 > test.rows*n || pages-pages0 > test.pages*n {
			t.Errorf("%s reads %d rows and %d pages, want at most %d and %d for each of %d dead letters", test.what, rows-rows0, pages-pages0, test.rows, test.pages, n)
		}
	}
}

// oneConnection returns a pool of one, whose statistics HandIn can hand in.
func oneConnection(r rig) *pgxpool.Pool {
	config := r.Config()
	config.MaxConns = 1
	one, err := pgxpool.NewWithConfig(r.Context(), config)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(one.Close)
	return one
}

func withoutAutovacuum(r rig) {
	for _, table := range []string{"outbox_events", "outbox_dead_letters", "outbox_replays"} {
		pgtest.Exec(r, `alter table outbox.`+table+` set (autovacuum_enabled = off)`)
	}
}
