package migrations_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// inTransaction begins a transaction on a connection of its own, and runs a statement in it.
func (d database) inTransaction(sql string) (tx pgx.Tx, done chan error) {
	d.Helper()
	other := newDatabase(d.T, d.Config().ConnString())
	tx, err := other.Begin(d.Context())
	if err != nil {
		d.Fatal(err)
	}
	done = make(chan error, 1)
	go func() {
		_, err := tx.Exec(d.Context(), sql)
		done <- err
	}()
	return tx, done
}

// waiting waits until n sessions of the database wait for a lock.
func (d database) waiting(n int) {
	d.Helper()
	pgtest.Eventually(d, fmt.Sprint(n, " sessions wait for a lock"), time.Minute, func() bool {
		return pgtest.Value[int](d, `select count(distinct pid) from pg_locks where not granted
			and pid in (select pid from pg_stat_activity where datname = current_database())`) == n
	})
}

func (d database) ended(done chan error) {
	d.Helper()
	if err := <-done; err != nil {
		d.Error(err)
	}
}

// Batches with the same dedupe keys in any order take turns. Here each has a key that the other wants, were they inserted in
// the order of the arrays.
// CONTRACT: C-11
func TestBatchesWithTheSameDedupeKeysTakeTurns(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	batch := func(keys string) string {
		n := strings.Count(keys, ",") + 1
		return fmt.Sprintf(`select outbox.enqueue_batch(array_fill('shop'::text, array[%d]), array_fill('orders'::text, array[%d]),
			array_fill('{}'::jsonb, array[%d]), p_dedupe_keys => '{%s}')`, n, n, n, keys)
	}
	first, done := d.inTransaction(batch("m"))
	d.ended(done)
	up, upDone := d.inTransaction(batch("a,m,z"))
	d.waiting(1)
	down, downDone := d.inTransaction(batch("z,m,a"))
	d.waiting(2)
	if err := first.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.ended(upDone)
	if err := up.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.ended(downDone)
	if err := down.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := d.events(); n != 3 {
		t.Errorf("%d events, want 3", n)
	}
	pgtest.Exec(d, batch("y,b,n"))
	if got := pgtest.Value[string](d, `select string_agg(dedupe_key, ' ' order by seq) from outbox.outbox_events where dedupe_key in ('b', 'n', 'y')`); got != "y b n" {
		t.Errorf("by seq the events are %s, want the order of the array", got)
	}
}

// Batches lock their slots in ascending order: one that waits for the lowest has none of the others.
// CONTRACT: C-50
func TestBatchLocksItsSlotsInOrder(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	const slot = `(hashtextextended('k' || n, hashtextextended('orders', hashtextextended('shop', 0))) & 1023)::integer`
	lowest := pgtest.Value[int](d, `select min(`+slot+`) from generate_series(1, 100) as n`)
	pgtest.Exec(d, `begin`)
	pgtest.Exec(d, `select pg_advisory_xact_lock(1869968482, $1)`, lowest)
	_, done := d.inTransaction(`select outbox.enqueue_batch(array_fill('shop'::text, array[100]), array_fill('orders'::text, array[100]),
		array_fill('{}'::jsonb, array[100]), p_partition_keys => (select array_agg('k' || n order by n) from generate_series(1, 100) as n),
		p_lock_keys => array_fill(true, array[100]))`)
	d.waiting(1)
	if n := pgtest.Value[int](d, `select count(*) from pg_locks where locktype = 'advisory' and granted and pid <> pg_backend_pid()
			and database = (select oid from pg_database where datname = current_database())`); n != 0 {
		t.Errorf("a batch that waits for its lowest slot has %d others", n)
	}
	pgtest.Exec(d, `rollback`)
	d.ended(done)
}

// Two events of a batch have one id: the one that is added has it, also where the first has a dedupe key that stands elsewhere.
// CONTRACT: C-11
func TestBatchWithOneIDTwice(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	const id = "01900000-0000-7000-8000-000000000001"
	stands := d.mustEnqueue(`'shop', 'orders', '{}', p_dedupe_key => 'k'`)
	got := d.batch(`'{shop,shop,shop}', '{orders,orders,orders}', '{1,2,3}', p_dedupe_keys => '{k,other,""}', p_ids => '{` + id + `,` + id + `,` + id + `}'`)
	if len(got) != 3 || got[0].id != stands.id || got[0].inserted || got[1].id.String() != id || !got[1].inserted || got[2].id.String() != id || got[2].inserted {
		t.Errorf("got %+v, want the first to stand as %s, the second added and the third not", got, stands.id)
	}
	if payload := pgtest.Value[string](d, `select payload::text from outbox.outbox_events where id = $1`, id); payload != "2" {
		t.Errorf("the event that was added is %s, want 2", payload)
	}
}

// Both functions give key_hash and size_bytes as values: no expression of the table computes them, and the trigger that fills them in
// other rows does not run for theirs.
func TestEnqueueGivesKeyHashAndSize(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	pgtest.Exec(d, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, headers, payload)
		values (gen_random_uuid(), 'shop', 'orders', 'k', '{"a": "b"}', '{"n": 1}')`)
	pgtest.Exec(d, `create or replace function outbox.outbox_values() returns trigger language plpgsql as 'begin raise exception $x$the trigger ran$x$; end'`)
	for _, more := range []string{``, `, p_dedupe_key => 'one'`} {
		d.mustEnqueue(`'shop', 'orders', '{"n": 1}', p_aggregate_id => 'k', p_headers => '{"a": "b", "none": null}'` + more)
	}
	for _, more := range []string{``, `, p_dedupe_keys => '{two}'`} {
		d.batch(`'{shop}', '{orders}', array['{"n": 1}'::jsonb], p_aggregate_ids => '{k}', p_headers => array['{"a": "b", "none": null}'::jsonb]` + more)
	}
	const want = `select count(*) || ' rows, ' || count(distinct key_hash) || ' keys, ' || string_agg(distinct size_bytes::text, ' ') from outbox.outbox_events
		where key_hash = hashtextextended('k', hashtextextended('orders', hashtextextended('shop', 0)))`
	if got := pgtest.Value[string](d, want); got != "5 rows, 1 keys, 16" {
		t.Errorf("the table has %s, want 5 rows, 1 keys, 16", got)
	}
}
