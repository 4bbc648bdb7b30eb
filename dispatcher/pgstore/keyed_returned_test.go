package pgstore_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Rows that come back below the floor of another worker's claims are in its first claim that looks back, before
// all others, and no pass is needed. Those that are not free are not, and keep out nothing.
// CONTRACT: C-50, C-22
func TestLookBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Migrated(t))
	const releaseAll = `update outbox.outbox_events set status = 'pending', locked_by = null, locked_until = null, attempts = 0 where seq <= 10`
	for name, test := range map[string]struct {
		change string // after which it is looked for rows 1 to 10, which were held
		block  bool
		want   []int64
		dead   int
	}{
		"nothing came back": {change: `select`},
		"given back":        {change: releaseAll, want: []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
		"leases that ended": {
			change: `update outbox.outbox_events set locked_until = now() - interval '1 s' where seq <= 10`,
			want:   []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10},
		},
		"some of them":           {change: releaseAll + ` and seq % 2 = 0`, want: []int64{2, 4, 6, 8, 10}},
		"no attempt left":        {change: `update outbox.outbox_events set locked_until = now() - interval '1 s', attempts = 10 where seq <= 2`, dead: 2},
		"one waits for a retry":  {change: releaseAll + `; update outbox.outbox_events set next_attempt_at = now() + interval '1 h' where seq = 3`, want: []int64{1, 2, 4, 5, 6, 7, 8, 9, 10}},
		"behind another's lease": {change: releaseAll + ` and seq > 1; update outbox.outbox_events set aggregate_id = 'one key', key_hash = outbox.outbox_key_hash(namespace, topic, null, 'one key') where seq <= 2`, want: []int64{3, 4, 5, 6, 7, 8, 9, 10}},
		"several of one key":     {change: releaseAll + `; update outbox.outbox_events set aggregate_id = 'one key', key_hash = outbox.outbox_key_hash(namespace, topic, null, 'one key') where seq <= 3`, want: []int64{1, 4, 5, 6, 7, 8, 9, 10}}, // PerKey is 1
		"behind a dead one":      {block: true, change: releaseAll + `; update outbox.outbox_dead_letters set resolution = null, resolved_at = null, resolved_by = null`, want: []int64{2, 3, 4, 5, 6, 7, 8, 9, 10}},
		"a dead one in its past": {block: true, change: releaseAll, want: []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
	} {
		t.Run(name, func(t *testing.T) {
			o := outbox{T: t, Pool: pool, stores: pgtest.Pool(t, pool.Config().ConnString())}
			pgtest.Exec(o, `truncate outbox.outbox_events, outbox.outbox_dead_letters restart identity`)
			o.fillKeys(2000, 1000, "orders")
			pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, seq, key_hash, reason, attempts, resolution, resolved_at, resolved_by)
				select gen_random_uuid(), namespace, topic, 0, key_hash, 'poison_message', 1, 'discarded', now(), 'test' from outbox.outbox_events where seq = 1`)
			claim := func(store dispatcher.Store, limit int) (seqs []int64, dead int) {
				claimed, err := store.Claim(t.Context(), dispatcher.ClaimRequest{
					Shares: []dispatcher.Share{{Topic: "orders", Limit: limit}}, Lease: time.Minute, MaxAttempts: 10,
					Keys: &dispatcher.KeyOrder{PerKey: 1, BlockOnDead: test.block},
				})
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range claimed.Events {
					seqs = append(seqs, e.Seq)
				}
				return seqs, len(claimed.Dead)
			}
			left, other := o.Store("shop", uuid.New()), o.Store("shop", uuid.New())
			if seqs, _ := claim(left, 10); len(seqs) != 10 || slices.Max(seqs) != 10 {
				t.Fatalf("rows %v were claimed first", seqs)
			}
			for range 3 {
				claim(other, 100)
				pgstore.NoPass(other)
			}
			for change := range strings.SplitSeq(test.change, ";") {
				pgtest.Exec(o, change)
			}
			if seqs, dead := claim(other, 100); slices.Min(seqs) <= 10 || dead > 0 {
				t.Fatalf("a claim that does not look back has rows %v: they lie above the floor", seqs)
			}
			pgstore.LookBack(other)
			back, dead := claim(other, 100)
			early := slices.DeleteFunc(slices.Clone(back), func(seq int64) bool { return seq > 10 })
			if !slices.Equal(early, test.want) {
				t.Errorf("rows %v of those that came back were claimed, want %v", early, test.want)
			}
			if len(early) > 0 && back[0] != early[0] {
				t.Errorf("the claim begins with row %d, not with what came back", back[0])
			}
			if dead != test.dead {
				t.Errorf("%d rows became dead, want %d", dead, test.dead)
			}
		})
	}
}

// During a backlog that waits for others of its keys, claims look back by themselves, and the rows of a worker that
// leaves are claimed with the next look back, or the one after it. An idle worker, and one whose passes are of one
// step, do not look back.
// CONTRACT: C-30, C-50
func TestLooksBackDuringABacklog(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fillKeys(30_000, 50, "orders")
	left := o.Store("shop", uuid.New())
	made := o.count()
	other := o.Store("shop", uuid.New())
	claim := func(store dispatcher.Store, topic string, limit int) []*dispatcher.Event {
		t.Helper()
		claimed, err := store.Claim(t.Context(), dispatcher.ClaimRequest{
			Shares: []dispatcher.Share{{Topic: topic, Limit: limit}}, Lease: time.Minute, MaxAttempts: 10, Keys: &dispatcher.KeyOrder{PerKey: 1},
		})
		if err != nil {
			t.Fatal(err)
		}
		return claimed.Events
	}
	deliver := func() (events []*dispatcher.Event) {
		t.Helper()
		events = claim(other, "orders", 20)
		if lost, err := other.Ack(t.Context(), leasesOf(events)); err != nil || len(lost) > 0 {
			t.Fatalf("lost %v, %v", lost, err)
		}
		return events
	}
	for range 10 {
		claim(other, "nothing here", 20)
	}
	if n := made.back.Load(); n > 0 {
		t.Errorf("an idle worker looked back %d times", n)
	}
	held := claim(left, "orders", 10)
	waiting := map[uuid.UUID]bool{}
	var returns []dispatcher.Return
	for _, e := range held {
		waiting[e.ID] = true
		returns = append(returns, dispatcher.Return{Lease: e.Lease()})
	}
	for claims := 0; made.back.Load() == 0; claims++ {
		if deliver(); claims > 20_000 {
			t.Fatalf("no look back in %d claims", claims)
		}
	}
	if lost, err := left.Release(t.Context(), returns); err != nil || len(lost) > 0 || len(held) != 10 {
		t.Fatalf("%d rows held, lost %v, %v", len(held), lost, err)
	}
	before := made.back.Load()
	for len(waiting) > 0 {
		for _, e := range deliver() {
			delete(waiting, e.ID)
		}
		if n := made.back.Load() - before; n > 2 {
			t.Fatalf("%d rows that were given back wait after %d looks back", len(waiting), n)
		}
	}
}

// A look back reads as many rows with a hundred thousand behind them as its limit, from indexes alone, and
// sorts nothing, whatever the planner knows.
// CONTRACT: C-2
func TestLookBackPlan(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	p := newPlanned(t, pgtest.Migrated(t))
	p.fillKeys(10, 10, "small")
	pgtest.Exec(p, `vacuum analyze outbox.outbox_events`)
	look := func() plan {
		return p.explain(fmt.Sprintf(`execute returned ('shop', '{orders}', '{%s}', '{ffffffff-ffff-ffff-ffff-ffffffffffff}', %d, true, 1000)`,
			time.Now().UTC().Format(time.RFC3339), pgstore.ReturnedRows))
	}
	prepare := func() {
		pgtest.Exec(p, `deallocate all`)
		pgtest.Exec(p, `prepare returned as `+pgstore.ReturnedSQL())
		look()
	}
	prepare() // on a table of one page: the plan is kept
	pgtest.Exec(p, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload, next_attempt_at)
		select gen_random_uuid(), 'shop', 'orders', 'key ' || n % 1000, '{}', now() - interval '1 hour' + n * interval '1 ms' from generate_series(1, 100000) as n`)
	const came = 500 // and a hundred that wait for the first of their keys
	pgtest.Exec(p, `update outbox.outbox_events set lease = 1 where topic = 'orders' and (seq <= 10 + $1::integer or seq between 1500 and 1599)`, came)
	check := func(when string) {
		t.Helper()
		got := look()
		t.Logf("%s: %d keys with %d buffers in %.1f ms", when, got.Rows, got.buffers(), got.millis)
		if most := 2*pgstore.ReturnedRows + 10*came; got.buffers() > most {
			t.Errorf("%s: it reads %d buffers, want at most %d", when, got.buffers(), most)
		}
		if got.Rows != came {
			t.Errorf("%s: it finds %d keys, want %d", when, got.Rows, came)
		}
		for _, bad := range []string{"Seq Scan", "Bitmap Heap Scan", "Sort"} {
			if got.has(bad) {
				t.Errorf("%s: it has a %s", when, bad)
			}
		}
		want := map[string]bool{"outbox_events_live": true, "outbox_events_key": true, "outbox_dead_letters_key": true}
		if names := got.indexes(); !maps.Equal(names, want) {
			t.Errorf("%s: it reads the indexes %v", when, names)
		}
		if n := got.largest("Index Scan"); n > pgstore.ReturnedRows {
			t.Errorf("%s: it reads %d rows of an index", when, n)
		}
	}
	check("plan kept from a table of one page")
	prepare()
	check("stale statistics")
	pgtest.Exec(p, `delete from pg_statistic where starelid = 'outbox.outbox_events'::regclass`)
	pgtest.Exec(p, `update pg_class set reltuples = -1, relpages = 0 where oid in (
		select 'outbox.outbox_events'::regclass union select indexrelid from pg_index where indrelid = 'outbox.outbox_events'::regclass)`)
	prepare()
	check("empty statistics")
	pgtest.Exec(p, `analyze outbox.outbox_events`)
	prepare()
	check("fresh statistics")
}
