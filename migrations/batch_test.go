package migrations_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// batch calls enqueue_batch, as SQL.
func (d database) batch(args string) []enqueued {
	d.Helper()
	rows, err := d.Query(d.Context(), `select id, inserted from outbox.enqueue_batch(`+args+`)`)
	if err != nil {
		d.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e enqueued, err error) {
		err = row.Scan(&e.id, &e.inserted)
		return e, err
	})
	if err != nil {
		d.Fatalf("enqueue_batch(%s): %v", args, err)
	}
	return all
}

// arguments of enqueue, one event a line; a null is the default.
var events = [][]string{
	{`'shop'`, `'orders'`, `'{"n": 1}'`, `'OrderPlaced'`, `'order'`, `'42'`, `null`, `null`, `null`, `'{"a": "b"}'`, `null`, `null`, `true`, `'{}'`},
	{`'shop'`, `'orders'`, `'null'`, `''`, `''`, `''`, `''`, `null`, `''`, `null`, `'1 hour'`, `null`, `null`, `null`},
	{`'bank'`, `'orders'`, `'[1]'`, `null`, `null`, `'7'`, `'p'`, `'6ba7b810-9dad-11d1-80b4-00c04fd430c8'`, `'6ba7b8109dad11d180b400c04fd430c8/k'`, `'{"n": 1, "z": null}'`, `'0'`, `null`, `false`, `'{"maxAttempts": 3}'`},
	{`'shop'`, `'refunds'`, `'{}'`, `null`, `null`, `'42'`, `null`, `null`, `'k'`, `'{}'`, `null`, `'01900000-0000-7000-8000-000000000001'`, `null`, `'{"retry": {"base": "2s"}}'`},
	{`'shop'`, `'refunds'`, `'{}'`, `null`, `null`, `null`, `null`, `null`, `'k'`, `'{}'`, `null`, `null`, `null`, `null`},
	{`'shop'`, `'refunds'`, `'{}'`, `repeat('é', 1024)`, `null`, `null`, `null`, `null`, `'l'`, `null`, `null`, `null`, `null`, `null`},
	{`'shop'`, `'orders'`, `'{"last": true}'`, `null`, `'order'`, `null`, `'p'`, `null`, `null`, `null`, `null`, `null`, `true`, `null`},
}

// What enqueue makes of events one by one, enqueue_batch makes of them together: the same rows in the same
// order, and the same results.
// CONTRACT: C-11, C-15
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
					if many[i].inserted != want(i) {
						t.Errorf("round %d, event %d: inserted is %t", round, i+1, many[i].inserted)
					}
				}
				if name == "with keys" && (many[4].id != many[3].id || many[3].id != one[3].id) {
					t.Errorf("round %d: the ids are %+v, want that of the row with the key for both", round, many)
				}
				if round == 0 {
					for i := 1; i < len(many); i++ {
						if a, b := many[i-1], many[i]; a.inserted && b.inserted && i != 3 && i != 4 && a.id.String() >= b.id.String() {
							t.Errorf("the ids are not in the order of the events: %s, %s", a.id, b.id)
						}
					}
					const rows = `select string_agg(concat_ws('|', namespace, topic, payload, event_type, aggregate_type, aggregate_id, partition_key,
						tenant_id, dedupe_key, headers, next_attempt_at - created_at, size_bytes, max_attempts, retry, key_hash, status), e'\n' order by seq)
						from outbox.outbox_events`
					if got, want := pgtest.Value[string](together, rows), pgtest.Value[string](single, rows); got != want {
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
	if n := d.events(); n != 0 {
		t.Errorf("%d rows, want none", n)
	}
	if none := d.batch(`'{}', '{}', '{}'`); len(none) != 0 {
		t.Errorf("an empty batch gave %+v", none)
	}
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
	if n := pgtest.Value[int](other, held, d.PgConn().PID()); n < 1000 || n > 1024 {
		t.Errorf("22,000 keys hold %d locks, want at most 1,024 of nearly as many slots", n)
	}
	pgtest.Exec(d, `commit`)
}
