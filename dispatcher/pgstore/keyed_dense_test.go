package pgstore_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// prepared reports whether a connection of the stores has prepared a statement with this text in it.
func (o outbox) prepared(text string) (is bool) {
	o.Helper()
	for _, conn := range o.stores.AcquireAllIdle(o.Context()) {
		var n int
		if err := conn.QueryRow(o.Context(), `select count(*) from pg_prepared_statements where strpos(statement, $1) > 0`, text).Scan(&n); err != nil {
			o.Error(err)
		}
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
func TestDenseClaims(t *testing.T) {
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
		if err != nil {
			o.Fatal(err)
		}
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
	tx, err := o.Begin(o.Context())
	if err != nil {
		o.Fatal(err)
	}
	defer func() { _ = tx.Rollback(o.Context()) }()
	if _, err := tx.Exec(o.Context(), `select from outbox.outbox_events where seq = $1 for update`, test.locked); err != nil {
		o.Fatal(err)
	}
	const comment = "where nearly each is the first live one"
	if o.prepared(comment) {
		o.Error("claim_dense.sql was run before")
	}
	for i := range shares {
		shares[i].Limit = 5
	}
	req.MaxBytes = test.bytes
	got, dead, leases := claim()
	if !slices.Equal(got, test.want) || !slices.Equal(dead, test.dead) {
		o.Errorf("claimed %v, and %v became dead, want %v and %v", got, dead, test.want, test.dead)
	}
	if !o.prepared(comment) {
		o.Error("the claim was not made by claim_dense.sql")
	}
	_ = tx.Rollback(o.Context())

	if dead := pgtest.Value[int](o, `select count(*) from outbox.outbox_dead_letters where reason <> 'poison_message'`); dead != len(test.dead) {
		o.Errorf("%d dead letters, want %d", dead, len(test.dead))
	}

	// All the others come, each once.
	ack(append(held, leases...))
	done := 20 + len(got) + len(dead)
	for tries := 0; done < 60-test.blocked && tries < 1000; tries++ {
		got, dead, leases = claim()
		ack(leases)
		done += len(got) + len(dead)
	}
	if done != 60-test.blocked {
		o.Errorf("%d rows came in all, want %d", done, 60-test.blocked)
	}
	if wait := pgtest.Value[int](o, `select count(*) from outbox.outbox_events where live`); wait != test.blocked {
		o.Errorf("%d rows are left, want %d", wait, test.blocked)
	}
}

// What claim_dense.sql looked at is reported in addition to the rows: how far it got in each topic, and the keys that it
// went past.
// CONTRACT: C-50
func TestDenseClaimReportsItsScan(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fillKeys(10, 100, "orders")
	pgtest.Exec(o, `update outbox.outbox_events set aggregate_id = 'key 1', key_hash = outbox.outbox_key_hash(namespace, topic, null, 'key 1') where seq = 3`)
	pgtest.Exec(o, `update outbox.outbox_events set topic = 'others' where seq > 8`)
	tx, err := o.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `prepare dense as `+pgstore.ClaimDenseSQL()); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), fmt.Sprintf(`execute dense ('shop', '{orders,none,others}', '{5,5,5}', '{0001-01-01,0001-01-01,0001-01-01}',
			array_fill('00000000-0000-0000-0000-000000000000'::uuid, '{3}'), 10, 1000, '%s', '1 minute', true, 1000000, true, '{}', '{}', '')`, worker)); err != nil {
		t.Fatal(err)
	}
	var same bool
	err = tx.QueryRow(t.Context(), `select current_setting('outbox.report')::jsonb = (select jsonb_build_object(
			'reached', jsonb_build_array(
				jsonb_build_object('range', 1, 'looked', 5, 'at', (select (extract(epoch from next_attempt_at - '2000-01-01Z') * 1000000)::bigint from outbox.outbox_events where seq = 5), 'id', (select id from outbox.outbox_events where seq = 5)),
				jsonb_build_object('range', 2, 'looked', 0, 'at', null, 'id', null),
				jsonb_build_object('range', 3, 'looked', 2, 'at', null, 'id', (select id from outbox.outbox_events where seq = 10))),
			'passed', jsonb_build_array(jsonb_build_object('range', 1, 'key_hash', (select key_hash from outbox.outbox_events where seq = 3)))))`).Scan(&same)
	if err != nil {
		t.Fatal(err)
	}
	if !same {
		var text string
		err := tx.QueryRow(t.Context(), `select current_setting('outbox.report')`).Scan(&text)
		t.Errorf("reported %s, %v", text, err)
	}
}

// With a key that owns half of a backlog, most claims are filled by the others, and all of its rows come in the
// end, in order.
// CONTRACT: C-50
func TestHotKey(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fillKeys(2000, 1000, "orders")
	pgtest.Exec(o, `update outbox.outbox_events set aggregate_id = 'hot', key_hash = outbox.outbox_key_hash(namespace, topic, null, 'hot') where seq % 2 = 0`)
	store := o.Store("shop", uuid.New())
	full, hot, last, claims := 0, 0, int64(0), 0
	for done, others := 0, 0; done < 2000; claims++ {
		claimed, err := store.Claim(t.Context(), dispatcher.ClaimRequest{
			Shares: []dispatcher.Share{{Topic: "orders", Limit: 100}}, Lease: time.Minute, MaxAttempts: 10, Keys: &dispatcher.KeyOrder{PerKey: 20},
		})
		if err != nil || claims > 1000 {
			t.Fatalf("%d claims, %d rows: %v", claims, done, err)
		}
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
		if lost, err := store.Ack(t.Context(), leasesOf(claimed.Events)); err != nil || len(lost) > 0 {
			t.Fatalf("lost %v, %v", lost, err)
		}
		done += len(claimed.Events)
	}
	t.Logf("%d claims, of which %d were full; the hot key got %d rows, with the others", claims, full, hot)
	if full < 8 || hot > 250 {
		t.Errorf("%d claims were full, and the hot key got %d rows, with the others, want at least 8, and at most 250", full, hot)
	}
}
