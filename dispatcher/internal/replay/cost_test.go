package replay_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// A step, and an observation of its outcomes, read their items and not the whole set, even when the tables were never
// analyzed.
func TestStepReadsItsBatchAlone(t *testing.T) {
	for _, keys := range []int{0, 5000} {
		t.Run(fmt.Sprint(keys, " keys"), func(t *testing.T) {
			r := newRig(t)
			withoutAutovacuum(r)
			r.dead(5000, keys)
			o := request()
			one := oneConnection(r)
			replays := replay.New(one, replay.Options{})
			if _, err := replays.Begin(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			reads := func(what string, do func() error, most int64) {
				t.Helper()
				total := func() int64 {
					t.Helper()
					pgtest.HandIn(t, one)
					return pgtest.Value[int64](r, `select coalesce(sum(idx_tup_read), 0)::bigint from pg_stat_user_indexes where relname ~ 'events|dead_letters|items'`) +
						pgtest.Value[int64](r, `select coalesce(sum(seq_tup_read), 0)::bigint from pg_stat_user_tables where relname = 'outbox_replay_items'`)
				}
				before := total()
				if err := do(); err != nil {
					t.Fatal(err)
				}
				if n := total() - before; n > most {
					t.Errorf("%s read %d rows, want at most %d", what, n, most)
				}
			}
			for range 2 {
				reads("a step of 50", func() error {
					done, err := replays.Step(t.Context(), o.ID, 50)
					if done != 50 {
						t.Errorf("a step of 50 did %d", done)
					}
					return err
				}, 1500)
			}
			r.makeDead("seq % 4 = 0")
			reads("a look at 100 outcomes, with the count of the set,", func() error { return second(replays.Observe(t.Context(), o.ID)) }, 5000+1500)
		})
	}
}

// Begin and a dry run look up once each dead letter, its event and later dead letters of the event. The indexes of the set
// grow at their end. Both hold even when the tables were never analyzed. The counts are rows and pages.
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
	costs := func(what string, do func() error, rows, pages int64) {
		t.Helper()
		total := func() (rows, pages int64) {
			t.Helper()
			pgtest.HandIn(t, one)
			return pgtest.Value[int64](r, `select sum(idx_tup_read)::bigint + (select sum(seq_tup_read) from pg_stat_user_tables where relname ~ 'events|dead_letters|items')::bigint
					from pg_stat_user_indexes where relname ~ 'events|dead_letters|items'`),
				pgtest.Value[int64](r, `select sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0))::bigint from pg_statio_user_tables where relname ~ 'events|dead_letters|items'`)
		}
		rows0, pages0 := total()
		if err := do(); err != nil {
			t.Fatal(err)
		}
		rows1, pages1 := total()
		t.Logf("%s: %.1f rows and %.1f pages for each dead letter", what, float64(rows1-rows0)/n, float64(pages1-pages0)/n)
		if rows1-rows0 > rows*n || pages1-pages0 > pages*n {
			t.Errorf("%s reads %d rows and %d pages, want at most %d and %d for each of %d dead letters", what, rows1-rows0, pages1-pages0, rows, pages, n)
		}
	}
	costs("a dry run", func() error { return second(replays.DryRun(t.Context(), request())) }, 3, 7)
	costs("to begin", func() error { return second(replays.Begin(t.Context(), request())) }, 4, 14)
	// An index that grows at its end has full pages, others are filled by two thirds.
	ends := pgtest.Value[int64](r, `select sum(pg_relation_size(indexrelid))::bigint from pg_stat_user_indexes where indexrelname in ('outbox_replay_items_pkey', 'outbox_replay_items_state')`)
	t.Logf("two indexes of %d bytes for each dead letter", ends/n)
	if ends > 115*n {
		t.Errorf("two indexes have %d bytes for each dead letter: they did not grow at their end", ends/n)
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
	for _, table := range []string{"outbox_events", "outbox_dead_letters", "outbox_replay_items"} {
		pgtest.Exec(r, `alter table outbox.`+table+` set (autovacuum_enabled = off)`)
	}
}
