package pgstore_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// prepareKeyed makes the plans of the claims in order per key as of now.
func (p planned) prepareKeyed() {
	p.Helper()
	pgtest.Exec(p, `deallocate all`)
	pgtest.Exec(p, `prepare keyed as `+pgstore.ClaimKeyedSQL())
	pgtest.Exec(p, `prepare dense as `+pgstore.ClaimDenseSQL())
	p.claimKeyed("none", 1, 1, far)
	p.claimKeyed("none", 1, 1, dense)
}

// How the rows of a range are read: looked up again to lock them, or locked as they are read.
const (
	far   = "far"
	dense = "dense"
)

// claimKeyed claims rows of a topic from the front of its range.
func (p planned) claimKeyed(topic string, limit, look int, read string) plan {
	p.Helper()
	const front = `'{0001-01-01}', '{00000000-0000-0000-0000-000000000000}'`
	if read == dense {
		return p.explain(fmt.Sprintf(`execute dense ('shop', '{%s}', '{%d}', %s, 10, 33554432, '%s', '1 minute', false, 33554432, null, true, '{}', '{}', '')`, topic, limit, front, worker))
	}
	return p.explain(fmt.Sprintf(`execute keyed ('shop', '{%s}', '{%d}', %s, 10, 33554432, '%s', '1 minute', false, 33554432, null, true, '{}', '{}', '',
		'{%d}', 10, '{}', '{}', '{}', '{false}')`, topic, limit, front, worker, look))
}

// largest is the most rows that a node of the type gave.
func (p plan) largest(nodeType string) (rows int) {
	if p.Type == nodeType {
		rows = p.Rows
	}
	for _, part := range p.Parts {
		rows = max(rows, part.largest(nodeType))
	}
	return rows
}

// passes is how many rows of CTEs the plan goes over in all.
func (p plan) passes() (rows int) {
	if p.Type == "CTE Scan" {
		rows = p.Rows * p.Loops
	}
	for _, part := range p.Parts {
		rows += part.passes()
	}
	return rows
}

// The claim in order per key reads indexes alone, sorts no more than it looks at, and takes as long with
// a hundred thousand rows of one key before the others as with none, whatever the planner knows.
// CONTRACT: C-2, C-50
// REQUIREMENT: STORAGE-13
func TestKeyedPlansReadIndexesAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	p := newPlanned(t, pgtest.Migrated(t))
	p.fillKeys(10, 10, "small")
	pgtest.Exec(p, `vacuum analyze outbox.outbox_events`)
	p.prepareKeyed() // on a table of one page: the plan is kept
	pgtest.Exec(p, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload)
		select gen_random_uuid(), 'shop', topic, 'key ' || n, '{}' from generate_series(1, 2000) as n, unnest('{alone,behind}'::text[]) as topic`)
	alone := p.claimKeyed("alone", 100, 125, far)
	pgtest.Exec(p, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload, next_attempt_at)
		select gen_random_uuid(), 'shop', 'behind', 'hot', '{}', now() - interval '1 hour' from generate_series(1, 100000) as n`)
	check := func(when string) {
		t.Helper()
		for _, read := range []string{far, dense} {
			for _, look := range []int{125, 400, 5000} {
				behind := p.claimKeyed("behind", 100, look, read)
				t.Logf("%s, read %s: %d rows with %d buffers in %.1f ms; next to a hot key, looking at %d: %d rows with %d buffers in %.1f ms",
					when, read, alone.Rows, alone.buffers(), alone.millis, look, behind.Rows, behind.buffers(), behind.millis)
				most := alone.buffers() + 10*look
				need.That(t, behind.buffers() <= most, "%s, read %s: a claim at 100,000 rows of one key reads %d buffers, want at most %d", when, read, behind.buffers(), most)
				for _, bad := range []string{"Seq Scan", "Bitmap Heap Scan"} {
					need.That(t, !behind.has(bad), "%s, read %s: the claim has a %s", when, read, bad)
				}
				n := behind.largest("Sort")
				need.That(t, n <= look, "%s, read %s: the claim sorts %d rows", when, read, n)
			}
		}
	}
	check("plan kept from a table of one page")
	pgtest.Exec(p, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload)
		select ('01900000-0000-7000-8' || lpad(t::text, 3, '0') || '-' || lpad(to_hex(n), 12, '0'))::uuid, 'shop', topic, 'key ' || n % 100, '{}'
		from generate_series(1, 2000) as n, unnest($1::text[]) with ordinality as reads (topic, t)`, []string{far, dense})
	for read, want := range map[string]int{far: 500, dense: 100} { // the dense one takes the first of each key
		several := p.claimKeyed(fmt.Sprintf("%q", read), 500, 550, read)
		t.Logf("read %s, a claim of %d rows of 100 keys goes over %d rows of CTEs", read, several.Rows, several.passes())
		need.That(t, several.Rows == want && several.passes() <= 30*500,
			"read %s, a claim of %d rows goes over %d rows of CTEs, want %d, and at most 15,000", read, several.Rows, several.passes(), want)
	}
	p.prepareKeyed()
	check("stale statistics")
	pgtest.Exec(p, `delete from pg_statistic where starelid = 'outbox.outbox_events'::regclass`)
	pgtest.Exec(p, `update pg_class set reltuples = -1, relpages = 0 where oid in (
		select 'outbox.outbox_events'::regclass union select indexrelid from pg_index where indrelid = 'outbox.outbox_events'::regclass)`)
	p.prepareKeyed()
	check("empty statistics")
	pgtest.Exec(p, `analyze outbox.outbox_events`)
	p.prepareKeyed()
	check("fresh statistics")
}

// An event with a key costs a hundred bytes of WAL more to insert, for the index, and a claim touches no
// index. An event without a key pays nothing for the order of others.
// CONTRACT: C-50
func TestKeyedBudgetOfWALIsKept(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	p, _ := newServer(t)
	const batch, batches, events = 100, 50, 5000
	var inserted [2]int64
	for i, key := range []string{`null`, `n::text`} {
		inserted[i] = p.wal(func() {
			for range batches {
				pgtest.Exec(p, `select outbox.enqueue('shop', $2, jsonb_build_object('k', repeat('x', 191)), p_aggregate_id => `+key+`)
					from generate_series(1, $1::integer) as n`, batch, []string{"bare", "keyed"}[i])
			}
		})
	}
	pgtest.HandIn(p, p.Pool)
	size := func(index string) int64 {
		return pgtest.Value[int64](p.outbox, `select pg_relation_size($1::regclass)`, index)
	}
	t.Logf("WAL bytes of an insert: %d without a key, %d with one; the index of keys has %d bytes", inserted[0]/events, inserted[1]/events, size("outbox.outbox_events_key"))
	more := (inserted[1] - inserted[0]) / events
	need.That(t, more <= 110, "a key costs %d bytes of WAL at insert, want at most 110", more)
	rows := size("outbox.outbox_events_key") / 8192
	need.That(t, rows <= events/100, "the index of keys has %d pages for %d events with a key", rows, events)
	store := p.Store("shop", uuid.New())
	done := 0
	claimed := p.wal(func() {
		for claims := 0; done < events; claims++ {
			c, err := store.Claim(t.Context(), inOrder("keyed", batch, 10))
			if err != nil || claims == events { // on a slow machine a claim may end before it finds any
				t.Fatalf("%d claims took %d events, %v", claims, done, err)
			}
			acked(t, store, c.Events)
			done += len(c.Events)
		}
	})
	pgtest.HandIn(p, p.Pool)
	hot := pgtest.Value[int](p.outbox, `select n_tup_hot_upd from pg_stat_user_tables where relid = 'outbox.outbox_events'::regclass`)
	t.Logf("%d events: %d WAL bytes to claim and ack; %d HOT updates", done, claimed/int64(done), hot)
	need.That(t, hot >= done*95/100, "%d of %d claims were HOT", hot, done)
	perEvent := inserted[1]/events + claimed/int64(done)
	need.That(t, perEvent <= 1150, "insert, claim and ack write %d bytes of WAL for an event with a key, want at most 1,150", perEvent)
}

// Most outboxes are empty most of the time, and that is when vacuum and analyze find them. The planner
// then takes each index of live rows for one page, however many it has, and all of them for equally
// good. Plans that are made then are kept, and must do for the next backlog.
// CONTRACT: C-2, C-50
func TestPlansOfADrainedTableServeTheNextBacklog(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	p := newPlanned(t, pgtest.Migrated(t))
	fill := func(n int, topic string) { // in the same order each time, which is not that of seq
		pgtest.Exec(p, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload)
			select md5(concat($1::text, n, '-', $2::integer))::uuid, 'shop', $1, 'key ' || n % 1000, '{}' from generate_series(1, $2::integer) as n`, topic, n)
	}
	fill(20_000, "big")
	pgtest.Exec(p, `update outbox.outbox_events set status = 'delivered'`)
	pgtest.Exec(p, `vacuum analyze outbox.outbox_events`)
	if n := pgtest.Value[int](p.outbox, `select relpages from pg_class where relname = 'outbox_events_live' and reltuples = 0`); n < 50 {
		t.Fatalf("the index of live rows has %d pages: the test does not show what it is for", n)
	}
	p.prepare()
	fill(2000, "big")
	p.wantIndexPlans("drained")
	p.prepareKeyed()
	for _, read := range []string{far, dense} {
		topic := fmt.Sprintf("%q", read)
		fill(2000, read)
		for _, limit := range []int{10, 100} {
			claim := p.claimKeyed(topic, limit, limit*5/4, read)
			t.Logf("a claim in order of %d rows, read %s: %d buffers in %.1f ms", claim.Rows, read, claim.buffers(), claim.millis)
			if claim.Rows < limit/3 { // the dense one looks at no more rows than the limit
				t.Errorf("a claim in order returned %d rows, want at least a third of %d", claim.Rows, limit)
			}
			if n := claim.buffers(); n > 200+30*limit {
				t.Errorf("a claim in order of %d rows reads %d buffers", limit, n)
			}
		}
	}
}

// prepared reports whether a connection of the stores has prepared a statement with this text in it.
func (o outbox) prepared(text string) (is bool) {
	o.Helper()
	for _, conn := range o.stores.AcquireAllIdle(o.Context()) {
		var n int
		need.Want(o, nil, "%v", conn.QueryRow(o.Context(), `select count(*) from pg_prepared_statements where strpos(statement, $1) > 0`, text).Scan(&n))
		is = is || n > 0
		conn.Release()
	}
	return is
}

// denseCase is one of the third claim of a worker whose first two were full: it is made by claim_dense.sql.
type denseCase struct {
	keys    int    // row n is of key n % keys
	waits   bool   // the rows of the first two claims are still held
	change  string // made before the claim
	bytes   int64  // MaxBytes of the claim
	block   bool   // BlockOnDead
	locked  int64  // the row that another session locks
	topics  bool   // even rows are of another topic, and it is claimed as well
	want    []int64
	dead    []dispatcher.DeadReason
	blocked int // rows that never come
}

// Once claims are full and nearly each row is the first of its key, claim_dense.sql does what claim_keyed.sql
// would: it leaves alone what is locked, waits or is blocked, marks what has no attempt left dead, keeps to its
// bytes, and what it passes by comes later. Rows 1 to 20 were claimed before, and the limit is five.
// CONTRACT: C-50, C-20 to C-22
func TestDenseClaimsTakeWhatKeyedOnesWould(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Migrated(t))
	for name, test := range map[string]denseCase{
		"all can be had":     {keys: 100, want: []int64{21, 22, 23, 24, 25}},
		"two topics":         {keys: 100, topics: true, want: []int64{21, 22, 23, 24, 25, 26, 27, 28, 29, 30}},
		"some wait":          {keys: 23, waits: true, want: []int64{21, 22, 23}},
		"several of one key": {keys: 100, change: `update outbox.outbox_events set aggregate_id = 'one key', key_hash = outbox.outbox_key_hash(namespace, topic, null, 'one key') where seq in (22, 24)`, want: []int64{21, 22, 23, 25}},
		"no key":             {keys: 100, change: `update outbox.outbox_events set aggregate_id = null, key_hash = null where seq in (22, 24)`, want: []int64{21, 22, 23, 24, 25}},
		"one is locked":      {keys: 100, locked: 22, want: []int64{21, 23, 24, 25, 26}},
		"bytes for three":    {keys: 100, bytes: 7, want: []int64{21, 22, 23}},
		"bytes for a few":    {keys: 100, bytes: 7, change: `update outbox.outbox_events set aggregate_id = 'one key', key_hash = outbox.outbox_key_hash(namespace, topic, null, 'one key') where seq in (21, 22)`, want: []int64{21, 23, 24}},
		"bytes and a dead one": {
			keys: 100, bytes: 7, change: `update outbox.outbox_events set attempts = 10 where seq = 22`,
			want: []int64{21, 23, 24}, dead: []dispatcher.DeadReason{dispatcher.ReasonMaxRetriesExceeded},
		},
		"bytes for none":       {keys: 100, bytes: 1, want: []int64{21}},
		"behind a dead one":    {keys: 20, block: true, change: deadRecords, want: []int64{21, 23, 25}, blocked: 4},
		"dead ones do not bar": {keys: 20, change: deadRecords, want: []int64{21, 22, 23, 24, 25}},
		"no attempt left": {
			keys: 100, change: `update outbox.outbox_events set attempts = 10 where seq = 22`,
			want: []int64{21, 23, 24, 25}, dead: []dispatcher.DeadReason{dispatcher.ReasonMaxRetriesExceeded},
		},
		"a lease that ran out": {
			keys: 100, change: `update outbox.outbox_events set attempts = 10, suspicion = 5, status = 'processing', locked_by = id, locked_until = now() - interval '1 s' where seq = 22`,
			want: []int64{21, 23, 24, 25}, dead: []dispatcher.DeadReason{dispatcher.ReasonProcessingTimeout},
		},
		"no attempt left, but it waits": {
			keys: 23, waits: true, change: `update outbox.outbox_events set attempts = 10 where seq = 24`, want: []int64{21, 22, 23},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := outbox{T: t, Pool: pool, stores: pgtest.Pool(t, pool.Config().ConnString())}
			pgtest.Exec(o, `truncate outbox.outbox_events, outbox.outbox_dead_letters restart identity`)
			o.fillKeys(60, test.keys, "orders")
			o.dense(test)
		})
	}
}

// deadRecords are dead letters of two dead rows of keys that have others.
const deadRecords = `insert into outbox.outbox_dead_letters (event_id, namespace, topic, seq, key_hash, reason, attempts)
	select id, namespace, topic, seq, key_hash, 'poison_message', 1 from outbox.outbox_events where seq in (2, 4)`

// dense runs a case.
func (o outbox) dense(test denseCase) {
	o.Helper()
	shares := []dispatcher.Share{{Topic: "orders", Limit: 10}}
	if test.topics {
		pgtest.Exec(o, `update outbox.outbox_events set topic = 'others' where seq % 2 = 0`)
		shares = append(shares, dispatcher.Share{Topic: "others", Limit: 10})
	}
	store := o.Store("shop", uuid.New())
	req := dispatcher.ClaimRequest{Shares: shares, Lease: time.Minute, MaxAttempts: 10, Keys: &dispatcher.KeyOrder{PerKey: 1, BlockOnDead: test.block}}
	claim := func() (seqs []int64, dead []dispatcher.DeadReason, leases []dispatcher.Lease) {
		claimed, err := store.Claim(o.Context(), req)
		need.OK(o, err)
		for _, e := range claimed.Events {
			seqs = append(seqs, e.Seq)
		}
		for _, d := range claimed.Dead {
			dead = append(dead, d.Reason)
		}
		slices.Sort(seqs)
		return seqs, dead, leasesOf(claimed.Events)
	}
	ack := func(leases []dispatcher.Lease) {
		if lost, err := store.Ack(o.Context(), leases); err != nil || len(lost) > 0 {
			o.Fatalf("lost %v, %v", lost, err)
		}
	}
	var held []dispatcher.Lease
	for i := range shares {
		shares[i].Limit = 10 / len(shares)
	}
	for range 2 {
		_, _, leases := claim()
		held = append(held, leases...)
		pgstore.NoPass(store) // which is due by time
	}
	if !test.waits {
		ack(held)
		held = nil
	}
	if test.change != "" {
		pgtest.Exec(o, test.change)
	}
	tx := pgtest.Begin(o, `select from outbox.outbox_events where seq = $1 for update`, test.locked)
	const comment = "where nearly each is the first live one"
	need.That(o, !o.prepared(comment), "claim_dense.sql was run before")
	for i := range shares {
		shares[i].Limit = 5
	}
	req.MaxBytes = test.bytes
	got, dead, leases := claim()
	need.That(o, slices.Equal(got, test.want) && slices.Equal(dead, test.dead), "claimed %v, and %v became dead, want %v and %v", got, dead, test.want, test.dead)
	need.That(o, o.prepared(comment), "the claim was not made by claim_dense.sql")
	_ = tx.Rollback(o.Context())

	pgtest.Want[int](o, len(test.dead), "%d dead letters, want %d", `select count(*) from outbox.outbox_dead_letters where reason <> 'poison_message'`)

	// All the others come, each once.
	ack(append(held, leases...))
	done := 20 + len(got) + len(dead)
	for tries := 0; done < 60-test.blocked && tries < 1000; tries++ {
		got, dead, leases = claim()
		ack(leases)
		done += len(got) + len(dead)
	}
	need.Want(o, 60-test.blocked, "%d rows came in all, want %d", done)
	pgtest.Want[int](o, test.blocked, "%d rows are left, want %d", `select count(*) from outbox.outbox_events where live`)
}

// With a key that owns half of a backlog, most claims are filled by the others, and all of its rows come in the
// end, in order.
// CONTRACT: C-50
func TestHotKeyHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fillKeys(2000, 1000, "orders")
	pgtest.Exec(o, `update outbox.outbox_events set aggregate_id = 'hot', key_hash = outbox.outbox_key_hash(namespace, topic, null, 'hot') where seq % 2 = 0`)
	store := o.Store("shop", uuid.New())
	full, hot, last, claims := 0, 0, int64(0), 0
	for done, others := 0, 0; done < 2000; claims++ {
		claimed, err := store.Claim(t.Context(), inOrder("orders", 100, 20))
		need.Must(t, err == nil && claims <= 1000, "%d claims, %d rows: %v", claims, done, err)
		if len(claimed.Events) == 100 {
			full++
		}
		for _, e := range claimed.Events {
			switch {
			case e.AggregateID != "hot":
				others++
			case e.Seq <= last:
				t.Fatalf("row %d of the hot key came after row %d", e.Seq, last)
			case others < 1000:
				hot++
				fallthrough
			default:
				last = e.Seq
			}
		}
		acked(t, store, claimed.Events)
		done += len(claimed.Events)
	}
	t.Logf("%d claims, of which %d were full; the hot key got %d rows, with the others", claims, full, hot)
	need.That(t, full >= 8 && hot <= 250, "%d claims were full, and the hot key got %d rows, with the others, want at least 8, and at most 250", full, hot)
}
