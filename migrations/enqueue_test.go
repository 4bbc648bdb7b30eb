package migrations_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

type enqueued struct {
	id       uuid.UUID
	inserted bool
}

// enqueue calls the function with named arguments, as SQL.
func (d database) enqueue(args string) (e enqueued, err error) {
	err = d.QueryRow(d.Context(), `select id, inserted from outbox.enqueue(`+args+`)`).Scan(&e.id, &e.inserted)
	return e, err
}

func (d database) mustEnqueue(args string) enqueued {
	d.Helper()
	e, err := d.enqueue(args)
	need.Must(d, err == nil, "enqueue(%s): %v", args, err)
	return e
}

func (d database) events() int {
	d.Helper()
	return pgtest.Value[int](d, `select count(*) from outbox.outbox_events`)
}

// Every argument reaches its column, an empty text is none, and a new row is pending and due.
// CONTRACT: C-14, C-15
// REQUIREMENT: OVERVIEW-11, STORAGE-2, STORAGE-3, STORAGE-5, MODKIT-1, cpt-cf-mini-chat-algo-usage-outbox-enqueue
func TestEnqueueFillsEveryColumn(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	const tenant = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	const asText = `select concat_ws('|', namespace, topic, payload, event_type, aggregate_type, aggregate_id, partition_key,
			tenant_id, dedupe_key, headers, next_attempt_at - created_at, first_due_at - created_at, size_bytes, status, attempts, live,
			locked_by, locked_until, last_error, dead_reason, updated_at = created_at, seq > 0)
		from outbox.outbox_events where id = $1`
	for id, key := range map[string]string{
		"01900000-0000-7000-8000-000000000001": tenant + "/1", "01900000-0000-7000-8000-000000000002": "",
	} {
		full := d.mustEnqueue(`p_namespace => 'shop', p_topic => 'orders', p_payload => '{"n": 1}', p_event_type => 'OrderPlaced',
			p_aggregate_type => 'order', p_aggregate_id => '42', p_partition_key => 'p', p_tenant_id => '` + tenant + `',
			p_dedupe_key => '` + key + `', p_headers => '{"a": "b"}', p_delay => '1 hour', p_id => '` + id + `', p_max_bytes => 8`)
		need.That(t, full.id.String() == id && full.inserted, "enqueue returned %+v, want %s inserted", full, id)
		want := `shop|orders|{"n": 1}|OrderPlaced|order|42|p|` + tenant + `|` + key + `|{"a": "b"}|01:00:00|01:00:00|16|pending|0|t|t|t`
		want = strings.Replace(want, "||", "|", 1) // no key
		pgtest.Want[string](d, want, "row is  %s\nwant    %s", asText, full.id)
	}
	for _, args := range []string{
		`'shop', 'orders', 'null'`,
		`'shop', 'orders', 'null', '', '', '', '', null, '', null, null, null, null, null, null`,
	} {
		bare := d.mustEnqueue(args)
		if got, want := pgtest.Value[string](d, asText, bare.id), `shop|orders|null|{}|00:00:00|4|pending|0|t|t|t`; got != want {
			t.Errorf("enqueue(%s) made the row %s, want %s", args, got, want)
		}
	}
}

// An id made in SQL is a UUID version 7: it has the time, and sorts by it.
// REQUIREMENT: STORAGE-1
func TestEnqueueMakesTimeOrderedID(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	from := pgtest.Value[time.Time](d, `select clock_timestamp()`).Truncate(time.Millisecond)
	id := d.mustEnqueue(`'shop', 'orders', '{}'`).id
	to := pgtest.Value[time.Time](d, `select clock_timestamp()`)
	sec, nsec := id.Time().UnixTime()
	if at := time.Unix(sec, nsec); id.Version() != 7 || id.Variant() != uuid.RFC4122 || at.Before(from) || at.After(to) {
		t.Errorf("%s is version %d of %v, want version 7 made between %v and %v", id, id.Version(), at, from, to)
	}
}

// A second event with the key adds no row, and the caller gets the id of the first. The
// key is one of its namespace and topic, and rows without one never conflict.
// CONTRACT: C-1, C-11
// REQUIREMENT: MODKIT-3, cpt-cf-mini-chat-algo-usage-outbox-enqueue
func TestEnqueueDedupeKeyAddsOneRow(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	first := d.mustEnqueue(`'shop', 'orders', '{}', p_dedupe_key => 'k'`)
	again := d.mustEnqueue(`'shop', 'orders', '{"other": true}', p_dedupe_key => 'k'`)
	need.That(t, first.inserted && !again.inserted && again.id == first.id, "first %+v, again %+v: want the first inserted, and its id again", first, again)
	pgtest.Exec(d, `update outbox.outbox_events set status = 'delivered'`)
	late := d.mustEnqueue(`'shop', 'orders', '{}', p_dedupe_key => 'k'`)
	need.That(t, !late.inserted && late.id == first.id, "after delivery: %+v, want the row that stands", late)
	for _, args := range []string{
		`'shop', 'refunds', '{}', p_dedupe_key => 'k'`, `'bank', 'orders', '{}', p_dedupe_key => 'k'`,
		`'shop', 'orders', '{}'`, `'shop', 'orders', '{}'`, `'shop', 'orders', '{}', p_dedupe_key => ''`,
	} {
		need.That(t, d.mustEnqueue(args).inserted, "enqueue(%s) was taken for a duplicate", args)
	}
	need.Want(t, 6, "%d rows, want 6", d.events())
	_, err := d.Exec(t.Context(), `insert into outbox.outbox_events (id, namespace, topic, dedupe_key, payload)
		values (gen_random_uuid(), 'shop', 'orders', 'k', '{}')`)
	pg := (*pgconn.PgError)(nil)
	need.That(t, errors.As(err, &pg) && pg.ConstraintName == "outbox_events_dedupe", "a second row by plain SQL: error is %v, want one of outbox_events_dedupe", err)
}

// Of two transactions with one key, the second waits for the first: it enqueues when that rolls
// back, and gets that row's id when it commits.
// CONTRACT: C-11
func TestEnqueueDedupeWaitsForOtherTransaction(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"commit", "rollback"} {
		dsn := pgtest.Migrated(t)
		one, two := newDatabase(t, dsn), newDatabase(t, dsn)
		watch := newDatabase(t, dsn)
		pid := pgtest.Value[int](two, `select pg_backend_pid()`)
		pgtest.Exec(one, `begin`)
		first := one.mustEnqueue(`'shop', 'orders', '{}', p_dedupe_key => 'k'`)
		type result struct {
			enqueued
			err error
		}
		done := make(chan result, 1)
		go func() {
			e, err := two.enqueue(`'shop', 'orders', '{}', p_dedupe_key => 'k'`)
			done <- result{e, err}
		}()
		for !pgtest.Value[bool](watch, `select exists (select from pg_stat_activity where pid = $1 and wait_event_type = 'Lock')`, pid) {
			if len(done) > 0 {
				t.Fatalf("the second did not wait: %+v", <-done)
			}
		}
		pgtest.Exec(one, end)
		second := <-done
		if second.err != nil {
			t.Fatal(second.err)
		}
		if committed := end == "commit"; second.inserted == committed || (second.id == first.id) != committed {
			t.Errorf("after the first's %s the second got %+v; the first was %+v", end, second.enqueued, first)
		}
	}
}

// With a tenant, a dedupe key starts with the tenant's id and a slash.
// CONTRACT: C-12
func TestEnqueueTenantPrefixesDedupeKey(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	const tenant = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	bare := strings.ReplaceAll(tenant, "-", "")
	for key, ok := range map[string]bool{
		tenant + "/1":                            true,
		strings.ToUpper(tenant) + "/2":           true,
		bare + "/a/b":                            true,
		strings.ToUpper(bare) + "/":              true,
		"":                                       true,
		tenant:                                   false,
		bare:                                     false,
		tenant + "-1/":                           false,
		"1/" + tenant:                            false,
		"/" + tenant:                             false,
		"6ba7b810-9dad-11d1-80b4-00c04fd430c9/1": false,
	} {
		before := d.events()
		e, err := d.enqueue(`'shop', 'orders', '{}', p_tenant_id => '` + tenant + `', p_dedupe_key => '` + key + `'`)
		need.That(t, ok == (err == nil) && ok == e.inserted && (d.events() > before) == ok, "key %q: %+v, %v, want it taken: %t", key, e, err, ok)
		need.That(t, err == nil || strings.Contains(err.Error(), "tenant"), "key %q: error is %v, want one about the tenant", key, err)
	}
	d.mustEnqueue(`'shop', 'orders', '{}', p_dedupe_key => 'no tenant, no rule'`)
	d.mustEnqueue(`'shop', 'orders', '{}', p_tenant_id => '` + tenant + `'`)
}

// What is missing, too large or malformed is an error that says so and what to do, never shows the
// payload, and adds no row.
// CONTRACT: C-13, C-73
// REQUIREMENT: STORAGE-11
func TestEnqueueRefusesInvalidEvents(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	for args, want := range map[string]string{
		`null, 'orders', '"secret"'`:                                                             "namespace is missing",
		`'', 'orders', '"secret"'`:                                                               "namespace is missing",
		`'shop', null, '"secret"'`:                                                               "topic is missing",
		`'shop', '', '"secret"'`:                                                                 "topic is missing",
		`'shop', 'orders', null`:                                                                 "payload is missing",
		`'shop', 'orders', '"secret"', p_max_bytes => 7`:                                         "payload has 8 bytes, more than the limit of 7",
		`'shop', 'orders', to_jsonb(repeat('secret', 174763))`:                                   "payload has 1048580 bytes, more than the limit of 1048576",
		`'shop', 'orders', to_jsonb(repeat('s', 1048575)), p_max_bytes => null`:                  "limit of 1048576",
		`'shop', 'orders', '"secret"', p_headers => '["a"]'`:                                     "headers are not a JSON object",
		`'shop', 'orders', '"secret"', p_delay => '-1 second'`:                                   "delay is negative",
		`'shop', repeat('é', 256), '"secret"'`:                                                   "the topic 256 characters",
		`repeat('n', 256), 'orders', '"secret"'`:                                                 "the namespace has 256 and",
		`'shop', 'orders', '"secret"', repeat('t', 1025)`:                                        "event type, the aggregate type, the aggregate id, the partition key or the dedupe key is too long",
		`'shop', 'orders', '"secret"', p_dedupe_key => repeat('k', 1025)`:                        "the dedupe key is too long",
		`repeat('é', 255), repeat('é', 255), '"secret"', p_dedupe_key => repeat('☃', 1024)`:      "namespace, topic and dedupe key have 4092 bytes",
		`'shop', 'orders', '"secret"', p_headers => 'null'`:                                      "headers are not a JSON object",
		`'shop', 'orders', '"secret"', p_headers => '{"a": "b", "c": ["d"]}'`:                    "an object or an array as a value",
		`'shop', 'orders', '"secret"', p_headers => '{"a": {}}'`:                                 "an object or an array as a value",
		`'shop', 'orders', '"secret"', p_headers => '{"": "b"}'`:                                 "empty name",
		`'shop', 'orders', '"secret"', p_headers => jsonb_build_object('a', repeat('b', 65528))`: "headers have 65537 bytes",
		`'shop', 'orders', '"secret"', p_lock_key => true`:                                       "no key to lock",
		`'shop', 'orders', '"secret"', p_options => '[]'`:                                        "options are not a JSON object",
		`'shop', 'orders', '"secret"', p_options => '{"maxAttempts": 3, "prio": 1}'`:             `option "prio" is unknown`,
		`'shop', 'orders', '"secret"', p_options => '{"maxAttempts": 0}'`:                        "maxAttempts is not a whole number from 1 to 1000",
		`'shop', 'orders', '"secret"', p_options => '{"maxAttempts": 1001}'`:                     "maxAttempts is not a whole number",
		`'shop', 'orders', '"secret"', p_options => '{"expires": 5}'`:                            "expires is neither a duration nor a time with its zone",
		`'shop', 'orders', '"secret"', p_options => '{"expires": "-5m"}'`:                        "expires is neither a duration",
		`'shop', 'orders', '"secret"', p_options => '{"expires": "2030-01-31T18:00:00"}'`:        "expires is neither a duration",
		`'shop', 'orders', '"secret"', p_options => '{"maxAttempts": 1.5}'`:                      "maxAttempts is not a whole number",
		`'shop', 'orders', '"secret"', p_options => '{"maxAttempts": "3"}'`:                      "maxAttempts is not a whole number",
		`'shop', 'orders', '"secret"', p_options => '{"retry": "Linear"}'`:                       "retry is not an object",
	} {
		_, err := d.enqueue(args)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || !strings.Contains(pg.Message, want) || pg.Code != "22023" || pg.Hint == "" {
			t.Errorf("enqueue(%s): error is %v, want one of code 22023 with %q and a hint", args, err, want)
		} else if all := pg.Message + pg.Detail + pg.Hint; strings.Contains(all, "secret") {
			t.Errorf("enqueue(%s): the error shows the payload: %s", args, all)
		}
	}
	need.That(t, need.Err(d.enqueue(`'shop', 'orders', '{not json}'`)) != nil, "a payload that is not JSON was taken")
	need.Want(t, 0, "%d rows, want none", d.events())
	d.mustEnqueue(`'shop', 'orders', to_jsonb(repeat('s', 1048574))`) // exactly the limit
}

// Headers are texts, numbers and booleans, up to 64 KiB as text; a null is none.
// CONTRACT: C-16
func TestEnqueueHeadersAreBounded(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	for given, want := range map[string]string{
		`'{"a": "b", "c": null, "d": 1.50, "e": false}'`: `{"a": "b", "d": 1.50, "e": false}`,
		`'{"c": null}'`: `{}`,
		`null`:          `{}`,
		`jsonb_build_object('a', repeat('b', 65527))`: `{"a": "` + strings.Repeat("b", 65527) + `"}`,
	} {
		one := d.mustEnqueue(`'shop', 'orders', '{}', p_headers => ` + given).id
		two := pgtest.Value[uuid.UUID](d, `select id from outbox.enqueue_batch('{shop}', '{orders}', '{"{}"}', p_headers => array[`+given+`]::jsonb[])`)
		for _, id := range []uuid.UUID{one, two} {
			need.Want(t, want, "headers %.80s became %.80s, want %.80s", pgtest.Value[string](d, `select headers::text from outbox.outbox_events where id = $1`, id), given)
		}
	}
}

// An id that is there already adds no row, in its namespace and topic; elsewhere it is an error.
// CONTRACT: C-11
func TestEnqueueExistingIDAddsNoRow(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	const id = `'01900000-0000-7000-8000-000000000001'`
	first := d.mustEnqueue(`'shop', 'orders', '{}', p_id => ` + id)
	again := d.mustEnqueue(`'shop', 'orders', '{}', p_dedupe_key => 'new', p_id => ` + id)
	need.That(t, first.inserted && !again.inserted && again.id == first.id, "first %+v, again %+v: want the first inserted, and its id again", first, again)
	batch := d.batch(`'{shop,shop,shop}', '{orders,orders,orders}', '{"{}","{}","{}"}', p_ids => array[` + id +
		`, '01900000-0000-7000-8000-000000000002', '01900000-0000-7000-8000-000000000002']::uuid[]`)
	need.That(t, batch[0] == again && batch[1].inserted && !batch[2].inserted && batch[2].id == batch[1].id, "the batch gave %+v, want the second alone inserted", batch)
	from0 := d.batch(`'{shop,shop}', '{orders,orders}', '{"{}","{}"}', p_ids => '[0:1]={01900000-0000-7000-8000-000000000001,01900000-0000-7000-8000-000000000002}'`)
	need.That(t, from0[0] == again && !from0[1].inserted && from0[1].id == batch[1].id, "ids in an array from 0 on gave %+v, want those of the batch before", from0)
	var pg *pgconn.PgError
	for _, call := range []string{
		`enqueue('shop', 'refunds', '{}', p_id => ` + id + `)`,
		`enqueue('bank', 'orders', '{}', p_id => ` + id + `)`,
		`enqueue_batch('{shop,shop}', '{orders,refunds}', '{"{}","{}"}', p_ids => array[null, ` + id + `]::uuid[])`,
	} {
		_, err := d.Exec(t.Context(), `select * from outbox.`+call)
		need.That(t, errors.As(err, &pg) && pg.Code == "23505" && strings.Contains(pg.Message, "of another namespace or topic") && strings.Contains(call, "batch") == strings.Contains(pg.Message, "event 2: "),
			"%s: error is %v, want that the id is another event's", call, err)
	}
	need.Want(t, 2, "%d rows, want 2", d.events())
}

// There is one of each function, whatever is run again.
// CONTRACT: C-15
func TestEnqueueFunctionsExistOnce(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	d.up("outbox")
	for name, signature := range map[string]string{
		"enqueue": `p_namespace text, p_topic text, p_payload jsonb, p_event_type text DEFAULT NULL::text, ` +
			`p_aggregate_type text DEFAULT NULL::text, p_aggregate_id text DEFAULT NULL::text, ` +
			`p_partition_key text DEFAULT NULL::text, p_tenant_id uuid DEFAULT NULL::uuid, p_dedupe_key text DEFAULT NULL::text, ` +
			`p_headers jsonb DEFAULT '{}'::jsonb, p_delay interval DEFAULT '00:00:00'::interval, p_id uuid DEFAULT NULL::uuid, ` +
			`p_max_bytes integer DEFAULT 1048576, p_lock_key boolean DEFAULT false, p_options jsonb DEFAULT '{}'::jsonb, ` +
			`OUT id uuid, OUT inserted boolean`,
		"enqueue_batch": `p_namespaces text[], p_topics text[], p_payloads jsonb[], p_event_types text[] DEFAULT NULL::text[], ` +
			`p_aggregate_types text[] DEFAULT NULL::text[], p_aggregate_ids text[] DEFAULT NULL::text[], ` +
			`p_partition_keys text[] DEFAULT NULL::text[], p_tenant_ids uuid[] DEFAULT NULL::uuid[], p_dedupe_keys text[] DEFAULT NULL::text[], ` +
			`p_headers jsonb[] DEFAULT NULL::jsonb[], p_delays interval[] DEFAULT NULL::interval[], p_ids uuid[] DEFAULT NULL::uuid[], ` +
			`p_max_bytes integer DEFAULT 1048576, p_lock_keys boolean[] DEFAULT NULL::boolean[], p_options jsonb DEFAULT '{}'::jsonb`,
		"withdraw":       `p_namespace text, p_topic text, p_dedupe_key text DEFAULT NULL::text, p_id uuid DEFAULT NULL::uuid, OUT result text, OUT token bigint, OUT id uuid`,
		"withdraw_batch": `p_namespaces text[], p_topics text[], p_dedupe_keys text[] DEFAULT NULL::text[], p_ids uuid[] DEFAULT NULL::uuid[]`,
	} {
		got := pgtest.Value[[]string](d, `select array_agg(pg_get_function_arguments(oid)) from pg_proc
			where proname = $1 and pronamespace = 'outbox'::regnamespace`, name)
		need.That(t, len(got) == 1 && got[0] == signature, "signatures of %s are %q, want one, %q", name, got, signature)
	}
}

// The index is made once, and again after a try that was broken off.
func TestUpMakesTheIndexOfTenantsOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Migrated(t))
	db, err := pool.Acquire(t.Context())
	need.OK(t, err)
	defer db.Release()
	up := func(want bool) {
		t.Helper()
		if made, err := migrations.UpTenants(t.Context(), db.Conn(), pgtest.Schema); err != nil || made != want {
			t.Errorf("UpTenants: %v, %v; want %v", made, err, want)
		}
		var valid bool
		if err := db.QueryRow(t.Context(), `select indisvalid from pg_index where indexrelid = 'outbox.outbox_events_tenant'::regclass`).Scan(&valid); err != nil || !valid {
			t.Errorf("the index is valid: %v, %v", valid, err)
		}
	}
	up(true)
	up(false)
	need.OK(t, need.Err(db.Exec(t.Context(), `update pg_index set indisvalid = false where indexrelid = 'outbox.outbox_events_tenant'::regclass`)))
	up(true)
}

// numbered is an enqueue of an event of an aggregate with the option, and what else it is given.
func numbered(aggregate, more string) string {
	return `select outbox.enqueue('shop', 'orders', '1', p_aggregate_type => 'order', p_aggregate_id => '` + aggregate +
		`', p_options => '{"aggregateSequence": true}'` + more + `)`
}

func execute(t *testing.T, db interface {
	Query(context.Context, string, ...any) (pgx.Rows, error)
}, sql string) {
	t.Helper()
	rows, err := db.Query(t.Context(), sql)
	if err == nil {
		rows.Close()
		err = rows.Err()
	}
	need.Must(t, err == nil, "%s: %v", sql, err)
}

// sequences are the events' aggregates and numbers in the order of insertion, and then the counters.
func sequences(t *testing.T, pool *pgxpool.Pool) (all string) {
	t.Helper()
	err := pool.QueryRow(t.Context(), `select (select coalesce(string_agg(concat_ws(':', aggregate_id, aggregate_sequence), ' ' order by seq), '') from outbox.outbox_events)
		|| ' | ' || (select coalesce(string_agg(concat_ws(':', namespace, aggregate_type, aggregate_id, last), ' ' order by namespace, aggregate_type, aggregate_id), '')
			from outbox.outbox_aggregate_sequences)`).Scan(&all)
	need.OK(t, err)
	return all
}

// Committed events of an aggregate have the numbers 1, 2, 3 without a gap: a rollback takes its number back, one that
// was there before takes none, and events that do not request one have none.
// Storage: 1. Outbox Table Schema, sequence_number; Patterns 1, get_next_sequence_number
// REQUIREMENT: STORAGE-4
func TestAggregateSequenceHasNoGaps(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Migrated(t))
	execute(t, pool, `select outbox.enqueue('shop', 'orders', '1', p_aggregate_id => 'a', p_options => '{"aggregateSequence": false}')`)
	got := sequences(t, pool)
	need.Must(t, got == "a | ", "without the option there is %q", got)
	for _, end := range []string{"rollback", "commit"} {
		tx, err := pool.Begin(t.Context())
		need.OK(t, err)
		execute(t, tx, numbered("a", ""))
		execute(t, tx, "savepoint before")
		execute(t, tx, numbered("a", ""))
		execute(t, tx, "rollback to before")
		execute(t, tx, numbered("b", `, p_dedupe_key => 'k'`))
		execute(t, tx, numbered("b", `, p_dedupe_key => 'k'`))
		execute(t, tx, numbered("b", ""))
		execute(t, tx, end)
		_ = tx.Rollback(t.Context()) // of the one that has not ended
	}
	execute(t, pool, numbered("a", `, p_id => '6ba7b810-9dad-11d1-80b4-00c04fd430c8'`))
	execute(t, pool, numbered("a", `, p_id => '6ba7b810-9dad-11d1-80b4-00c04fd430c8'`))
	execute(t, pool, numbered("a", ""))
	got, want := sequences(t, pool), "a a:1 b:1 b:2 a:2 a:3 | shop:order:a:3 shop:order:b:2"
	need.Want(t, want, "the numbers are\n%s\nwant\n%s", got)
}

// A batch numbers its events in their order, and those that were there before take no number. Aggregates of other
// types and namespaces count for themselves.
func TestAggregateSequenceOfBatch(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Migrated(t))
	batch := func(more string) {
		execute(t, pool, `select outbox.enqueue_batch(array['shop', 'shop', 'shop', 'bank', 'shop', 'shop'], array_fill('orders'::text, '{6}'), array_fill('1'::jsonb, '{6}'),
			p_aggregate_types => array['order', 'order', null, 'order', 'order', 'order'], p_aggregate_ids => array['b', 'a', 'a', 'a', 'b', 'b']`+more+`)`)
	}
	batch(`, p_options => '{"aggregateSequence": true}'`)
	batch(`, p_options => '[{"aggregateSequence": true}, null, {}, {"maxAttempts": 3}, {"aggregateSequence": false}, {"maxAttempts": 3, "aggregateSequence": true}]'`)
	want := "b:1 a:1 a:1 a:1 b:2 b:3 b:4 a a a b b:5 | bank:order:a:1 shop::a:1 shop:order:a:1 shop:order:b:5"
	need.Want(t, want, "the numbers are\n%s\nwant\n%s", sequences(t, pool))

	execute(t, pool, `truncate outbox.outbox_events`)
	execute(t, pool, numbered("b", `, p_dedupe_key => 'first'`))
	batch(`, p_dedupe_keys => array['first', 'x', null, 'y', null, 'second'], p_options => '{"aggregateSequence": true}'`)
	batch(`, p_dedupe_keys => array['third', 'x', null, 'y', 'third', 'fourth'], p_options => '{"aggregateSequence": true}'`)
	want = "b:6 a:2 a:2 a:2 b:7 b:8 b:9 a:3 b:10 | bank:order:a:2 shop::a:3 shop:order:a:2 shop:order:b:10"
	need.Want(t, want, "with duplicates the numbers are\n%s\nwant\n%s", sequences(t, pool))
}

func TestAggregateSequenceRefusesInvalidOptions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Migrated(t))
	for call, want := range map[string]string{
		`enqueue('shop', 'orders', '1', p_options => '{"aggregateSequence": true}')`:                                                "no aggregate to number the event in",
		`enqueue('shop', 'orders', '1', p_aggregate_id => 'a', p_options => '{"aggregateSequence": 1}')`:                            "aggregateSequence is neither true nor false",
		`enqueue('shop', 'orders', '1', p_aggregate_id => 'a', p_options => '{"aggregateSequence": null}')`:                         "aggregateSequence is neither true nor false",
		numbered(strings.Repeat("鍵", 1000), "")[len("select outbox."):]:                                                             "more than 2600 bytes",
		`enqueue_batch('{shop,shop}', '{o,o}', '{1,1}', p_aggregate_ids => '{a,null}', p_options => '{"aggregateSequence": true}')`: "event 2: there is no aggregate",
		`enqueue_batch('{shop,shop}', '{o,o}', '{1,1}', p_options => '{"aggregateSequence": true}')`:                                "event 1: there is no aggregate",
	} {
		need.Fails(t, want, "%.120s: %v, want %q", need.Err(pool.Exec(t.Context(), "select outbox."+call)), call)
	}
	need.Want(t, " | ", "there is %q now", sequences(t, pool))
}

// Where the login's setting requires data, an event is refused in a transaction that has written nothing yet: by every way to enqueue, and by
// no other rule. Without the setting each of these is taken.
// CONTRACT: C-10
func TestEnqueueRequiresData(t *testing.T) {
	t.Parallel()
	owner := newDatabase(t, pgtest.Migrated(t))
	need.OK(t, need.Err(migrations.UpM10(t.Context(), owner.Conn, "outbox", m10)))
	need.OK(t, need.Err(migrations.UpOverview(t.Context(), owner.Conn, "outbox", migrations.Overview{Namespace: "shop"})))
	pgtest.Exec(owner, `create table public.data (n int primary key); grant select, insert, update on public.data to public; insert into public.data values (0)`)
	producer := owner.as(migrations.Producer, migrations.M10Worker, migrations.OverviewProducer)
	role := pgtest.Value[string](producer, `select current_user`)
	const write = `begin; insert into public.data values (1); `
	const one, keyed = `select outbox.enqueue('shop', 'orders', '{}')`, `select outbox.enqueue('shop', 'orders', '{}', p_dedupe_key => 'k', p_headers => '{"a": "b"}')`
	const batch = `select count(*) from outbox.enqueue_batch('{shop,shop}', '{orders,orders}', '{"{}","{}"}')`
	const keyedBatch = `select count(*) from outbox.enqueue_batch('{shop}', '{orders}', '{"{}"}', p_dedupe_keys => '{k}', p_options => '{"aggregateSequence": true}', p_aggregate_ids => '{a}')`
	for _, c := range []struct {
		sql    string
		events int // 0: refused
	}{
		// The wrong handle: nothing of its transaction was written before.
		{one, 0}, {keyed, 0}, {batch, 0}, {keyedBatch, 0},
		{`select m10_recovery.publish_outbox('order', '42', 'Placed', '{}')`, 0},
		{`insert into outbox.events (topic, payload) values ('orders', '{}')`, 0},
		{`begin; ` + one, 0},
		{`begin; savepoint s; ` + one, 0},
		{`begin; select n from public.data; select pg_advisory_xact_lock(1); ` + one, 0},
		{`begin; update public.data set n = 2 where n = 7; ` + one, 0},
		{`begin; insert into public.data values (0) on conflict do nothing; ` + one, 0},
		{`begin isolation level serializable; ` + batch, 0},
		{`set outbox.require_data = true; ` + one, 0},
		// The right one.
		{write + one, 1}, {write + keyed, 1}, {write + batch, 2}, {write + keyedBatch, 1}, {write + one + `; ` + batch, 3},
		{write + `select m10_recovery.publish_outbox('order', '42', 'Placed', '{}')`, 1},
		{write + `insert into outbox.events (topic, payload) values ('orders', '{}')`, 1},
		{write + `savepoint s; ` + one + `; release s`, 1},
		{`begin; savepoint s; insert into public.data values (1); release s; ` + one, 1},
		{`with d as (insert into public.data values (1) returning n) select outbox.enqueue('shop', 'orders', '{}') from d`, 1},
		// What it cannot see.
		{`begin; select n from public.data for update; ` + one, 1},
		{`begin; savepoint s; insert into public.data values (1); rollback to s; ` + one, 1},
		// Off, for a transaction or a session.
		{`begin; set local outbox.require_data = off; ` + one, 1}, {`set outbox.require_data = 'no'; ` + batch, 2}, {`set outbox.require_data = ''; ` + keyed, 1},
	} {
		for setting, want := range map[string]int{"set outbox.require_data = on": c.events, "reset outbox.require_data": max(c.events, 1)} {
			pgtest.Exec(owner, `truncate outbox.outbox_events, outbox.outbox_dead_letters; delete from public.data where n > 0`)
			pgtest.Exec(owner, `alter role `+role+` `+setting)
			login, err := pgx.ConnectConfig(t.Context(), producer.Config())
			need.OK(t, err)
			if _, err = login.Exec(t.Context(), c.sql); err == nil && login.PgConn().TxStatus() == 'T' {
				_, err = login.Exec(t.Context(), `commit`)
			}
			pg, refused := errors.AsType[*pgconn.PgError](err)
			if strings.HasPrefix(c.sql, "set outbox.require_data = true") {
				want = 0
			}
			if n := owner.events(); want > 0 && (err != nil || setting[:3] == "set" && n != want || n == 0) || want == 0 && (n > 0 || !refused || pg.Code != "25P01" || pg.Hint == "" ||
				!strings.HasPrefix(pg.Message, "outbox: enqueue after the data, on the transaction's own handle: ")) {
				t.Errorf("%s; %s: %d events, want %d, and the error %v", setting, c.sql, n, want, err)
			}
			need.OK(t, login.Close(t.Context()))
		}
	}
}
