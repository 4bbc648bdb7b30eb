package migrations_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// batch calls enqueue_batch, as SQL.
func (d database) batch(args string) []enqueued {
	d.Helper()
	rows, err := d.Query(d.Context(), `select id, inserted from outbox.enqueue_batch(`+args+`)`)
	need.OK(d, err)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e enqueued, err error) {
		err = row.Scan(&e.id, &e.inserted)
		return e, err
	})
	need.Must(d, err == nil, "enqueue_batch(%s): %v", args, err)
	return all
}

// arguments of enqueue, one event a line; a null is the default.
var events = [][]string{
	{`'shop'`, `'orders'`, `'{"n": 1}'`, `'OrderPlaced'`, `'order'`, `'42'`, `null`, `null`, `null`, `'{"a": "b"}'`, `null`, `null`, `true`, `'{}'`},
	{`'shop'`, `'orders'`, `'null'`, `''`, `''`, `''`, `''`, `null`, `''`, `null`, `'1 hour'`, `null`, `null`, `'{"expires": "1d30m"}'`},
	{`'bank'`, `'orders'`, `'[1]'`, `null`, `null`, `'7'`, `'p'`, `'6ba7b810-9dad-11d1-80b4-00c04fd430c8'`, `'6ba7b8109dad11d180b400c04fd430c8/k'`, `'{"n": 1, "z": null}'`, `'0'`, `null`, `false`, `'{"maxAttempts": 3}'`},
	{`'shop'`, `'refunds'`, `'{}'`, `null`, `null`, `'42'`, `null`, `null`, `'k'`, `'{}'`, `null`, `'01900000-0000-7000-8000-000000000001'`, `null`, `'{"retry": {"base": "2s"}, "expires": "2030-01-31 18:00:00+02"}'`},
	{`'shop'`, `'refunds'`, `'{}'`, `null`, `null`, `null`, `null`, `null`, `'k'`, `'{}'`, `null`, `null`, `null`, `null`},
	{`'shop'`, `'refunds'`, `'{}'`, `repeat('é', 1024)`, `null`, `null`, `null`, `null`, `'l'`, `null`, `null`, `null`, `null`, `null`},
	{`'shop'`, `'orders'`, `'{"last": true}'`, `null`, `'order'`, `null`, `'p'`, `null`, `null`, `null`, `null`, `null`, `true`, `null`},
}

// What enqueue makes of events one by one, enqueue_batch makes of them together: the same rows in the same
// order, and the same results.
// CONTRACT: C-11, C-15, C-18
func TestBatchAddsRowsLikeEnqueue(t *testing.T) {
	t.Parallel()
	types := []string{"text", "text", "jsonb", "text", "text", "text", "text", "uuid", "text", "jsonb", "interval", "uuid", "boolean"}
	for name, chosen := range map[string][][]string{"with keys": events, "without": {events[0], events[1], events[6]}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			single, together := newDatabase(t, pgtest.Migrated(t)), newDatabase(t, pgtest.Migrated(t))
			var one []enqueued
			var options []string
			columns := make([][]string, len(types))
			pgtest.Exec(single, `begin`)
			for _, e := range chosen {
				one = append(one, single.mustEnqueue(strings.Join(slices.Insert(slices.Clone(e), 12, "1000"), ", ")))
				for i := range types {
					columns[i] = append(columns[i], e[i])
				}
				options = append(options, e[13]+"::jsonb")
			}
			pgtest.Exec(single, `commit`)
			var args []string
			for i, c := range columns {
				args = append(args, fmt.Sprintf("array[%s]::%s[]", strings.Join(c, ", "), types[i]))
			}
			args = append(slices.Insert(args, 12, "1000"), "jsonb_build_array("+strings.Join(options, ", ")+")")
			for round, want := range []func(int) bool{func(i int) bool { return one[i].inserted }, func(i int) bool { return chosen[i][8] == `null` || chosen[i][8] == `''` }} {
				many := together.batch(strings.Join(args, ", "))
				for i := range one {
					need.Want(t, want(i), "round %d, event %d: inserted is %t", many[i].inserted, round, i+1)
				}
				need.That(t, name != "with keys" || (many[4].id == many[3].id && many[3].id == one[3].id),
					"round %d: the ids are %+v, want that of the row with the key for both", round, many)
				if round == 0 {
					for i := 1; i < len(many); i++ {
						if a, b := many[i-1], many[i]; a.inserted && b.inserted && i != 3 && i != 4 && a.id.String() >= b.id.String() {
							t.Errorf("the ids are not in the order of the events: %s, %s", a.id, b.id)
						}
					}
					const rows = `select string_agg(concat_ws('|', namespace, topic, payload, event_type, aggregate_type, aggregate_id, partition_key,
						tenant_id, dedupe_key, headers, next_attempt_at - created_at, first_due_at - created_at, size_bytes, max_attempts, retry, key_hash, status,
						case when expires_at > '2030-01-31' then expires_at - '2030-01-31 16:00:00Z' else expires_at - created_at end), e'\n' order by seq)
						from outbox.outbox_events`
					if got, want := pgtest.Value[string](together, rows), pgtest.Value[string](single, rows); got != want || !strings.Contains(got, "pending|1 day 01:30:00\n") || name == "with keys" && !strings.Contains(got, "pending|00:00:00\n") {
						t.Errorf("the batch made the rows\n%s\nwant\n%s", got, want)
					}
				}
			}
		})
	}
}

// An error names the event by its number, and nothing is added.
// CONTRACT: C-12, C-13, C-16
func TestBatchNamesInvalidEvent(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	const three = `'{shop,shop,shop}', '{orders,orders,orders}', '{"{}","{}","\"secret\""}'`
	for args, want := range map[string]string{
		`'{shop,NULL}', '{a,b}', '{"{}","{}"}'`:                                                      "event 2: the namespace is missing",
		`'{shop,shop}', array['a', repeat('t', 256)], '{"{}","{}"}'`:                                 "event 2: the namespace has 4 and the topic 256 characters",
		`'{shop,shop}', '{"",b}', '{"{}","{}"}'`:                                                     "event 1: the topic is missing",
		`'{shop,shop}', '{a,b}', '{"{}",NULL}'`:                                                      "event 2: the payload is missing",
		`'{shop,shop}', '{a}', '{"{}","{}"}'`:                                                        "one element for each of the 2 payloads",
		three + `, p_max_bytes => 7`:                                                                 "event 3: the payload has 8 bytes, more than the limit of 7",
		three + `, p_max_bytes => 7, p_dedupe_keys => '{a,b,c}'`:                                     "event 3: the payload has 8 bytes",
		three + `, p_headers => array['{}', '{}', '{"a": []}']::jsonb[]`:                             "event 3: the headers have an object or an array",
		three + `, p_delays => '{0,-1s,0}'`:                                                          "event 2: the delay is negative",
		three + `, p_lock_keys => '{f,f,t}'`:                                                         "event 3: there is no key to lock",
		three + `, p_options => '{"prio": 1}'`:                                                       `event 1: the option "prio" is unknown`,
		three + `, p_options => '[{}, null, {"maxAttempts": 0}]'`:                                    "event 3: the option maxAttempts",
		three + `, p_options => '[{}]'`:                                                              "one element for each of the 3 payloads",
		three + `, p_event_types => array['a', repeat('t', 1025), 'b']`:                              "event 2: the event type",
		three + `, p_dedupe_keys => '{a,b,c}', p_tenant_ids => array[null, gen_random_uuid(), null]`: "event 2: the dedupe key does not start with the tenant id",
	} {
		_, err := d.Exec(t.Context(), `select * from outbox.enqueue_batch(`+args+`)`)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || !strings.Contains(pg.Message, want) || pg.Code != "22023" || pg.Hint == "" {
			t.Errorf("enqueue_batch(%s): error is %v, want one of code 22023 with %q and a hint", args, err, want)
		} else if all := pg.Message + pg.Detail + pg.Hint; strings.Contains(all, "secret") {
			t.Errorf("enqueue_batch(%s): the error shows the payload: %s", args, all)
		}
	}
	need.Want(t, 0, "%d rows, want none", d.events())
	none := d.batch(`'{}', '{}', '{}'`)
	need.That(t, len(none) == 0, "an empty batch gave %+v", none)
}

// A key takes one of 1,024 locks, so no transaction can fill the server's lock table: with 20,000 keys others
// still connect and enqueue.
// CONTRACT: C-50
func TestLockKeysShareBoundedSlots(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	pgtest.Exec(d, `begin`)
	pgtest.Exec(d, `select count(*) from outbox.enqueue_batch(array_fill('shop'::text, '{20000}'), array_fill('orders'::text, '{20000}'),
		array_fill('{}'::jsonb, '{20000}'), p_aggregate_ids => (select array_agg(n::text) from generate_series(1, 20000) as n),
		p_lock_keys => array_fill(true, '{20000}'))`)
	pgtest.Exec(d, `select count(*) from (select outbox.enqueue('shop', 'orders', '{}', p_aggregate_id => n::text, p_lock_key => true)
		from generate_series(20001, 22000) as n) as e`)
	other := newDatabase(t, d.dsn)
	other.mustEnqueue(`'shop', 'orders', '{}', p_aggregate_id => '1'`)
	const held = `select count(*) from pg_locks where locktype = 'advisory' and granted and pid = $1 and classid = 1869968482`
	n := pgtest.Value[int](other, held, d.PgConn().PID())
	need.That(t, n >= 1000 && n <= 1024, "22,000 keys hold %d locks, want at most 1,024 of nearly as many slots", n)
	pgtest.Exec(d, `commit`)
}

// inTransaction begins a transaction on a connection of its own, and runs a statement in it.
func (d database) inTransaction(sql string) (tx pgx.Tx, done chan error) {
	d.Helper()
	other := newDatabase(d.T, d.Config().ConnString())
	tx, err := other.Begin(d.Context())
	need.OK(d, err)
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
	pgtest.Eventually(d, fmt.Sprint(n, " sessions wait for a lock"), func() bool {
		return pgtest.Value[int](d, `select count(distinct pid) from pg_locks where not granted
			and pid in (select pid from pg_stat_activity where datname = current_database())`) == n
	})
}

func (d database) ended(done chan error) {
	d.Helper()
	need.Want(d, nil, "%v", <-done)
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
	need.OK(t, first.Rollback(t.Context()))
	d.ended(upDone)
	need.OK(t, up.Commit(t.Context()))
	d.ended(downDone)
	need.OK(t, down.Commit(t.Context()))
	need.Want(t, 3, "%d events, want 3", d.events())
	pgtest.Exec(d, batch("y,b,n"))
	pgtest.Want(d, "y b n", "by seq the events are %s, want the order of the array", `select string_agg(dedupe_key, ' ' order by seq) from outbox.outbox_events where dedupe_key in ('b', 'n', 'y')`)
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
	pgtest.Want(d, 0, "a batch that waits for its lowest slot has %d others", `select count(*) from pg_locks where locktype = 'advisory' and granted and pid <> pg_backend_pid()
			and database = (select oid from pg_database where datname = current_database())`)
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
	need.That(t, len(got) == 3 && got[0].id == stands.id && !got[0].inserted && got[1].id.String() == id && got[1].inserted && got[2].id.String() == id && !got[2].inserted,
		"got %+v, want the first to stand as %s, the second added and the third not", got, stands.id)
	pgtest.Want(d, "2", "the event that was added is %s, want 2", `select payload::text from outbox.outbox_events where id = $1`, id)
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
	pgtest.Want(d, "5 rows, 1 keys, 16", "the table has %s, want 5 rows, 1 keys, 16", want)
}
