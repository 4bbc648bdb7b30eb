package migrations_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/hack/pgtest"
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
	if err != nil {
		d.Fatalf("enqueue(%s): %v", args, err)
	}
	return e
}

func (d database) events() int {
	d.Helper()
	return scalar[int](d, `select count(*) from outbox.outbox_events`)
}

// Every argument reaches its column, an empty text is none, and a new row is pending and due.
// CONTRACT: C-14, C-15
func TestEnqueue(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	const tenant = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	const asText = `select concat_ws('|', namespace, topic, payload, event_type, aggregate_type, aggregate_id, partition_key,
			tenant_id, dedupe_key, headers, next_attempt_at - created_at, payload_bytes, status, attempts, live,
			locked_by, locked_until, last_error, dead_reason, updated_at = created_at, seq > 0)
		from outbox.outbox_events where id = $1`
	for id, key := range map[string]string{
		"01900000-0000-7000-8000-000000000001": tenant + "/1", "01900000-0000-7000-8000-000000000002": "",
	} {
		full := d.mustEnqueue(`p_namespace => 'shop', p_topic => 'orders', p_payload => '{"n": 1}', p_event_type => 'OrderPlaced',
			p_aggregate_type => 'order', p_aggregate_id => '42', p_partition_key => 'p', p_tenant_id => '` + tenant + `',
			p_dedupe_key => '` + key + `', p_headers => '{"a": "b"}', p_delay => '1 hour', p_id => '` + id + `', p_max_bytes => 8`)
		if full.id.String() != id || !full.inserted {
			t.Errorf("enqueue returned %+v, want %s inserted", full, id)
		}
		want := `shop|orders|{"n": 1}|OrderPlaced|order|42|p|` + tenant + `|` + key + `|{"a": "b"}|01:00:00|8|pending|0|t|t|t`
		want = strings.Replace(want, "||", "|", 1) // no key
		if got := scalar[string](d, asText, full.id); got != want {
			t.Errorf("row is  %s\nwant    %s", got, want)
		}
	}
	for _, args := range []string{
		`'shop', 'orders', 'null'`,
		`'shop', 'orders', 'null', '', '', '', '', null, '', null, null, null, null, null`,
	} {
		bare := d.mustEnqueue(args)
		if got, want := scalar[string](d, asText, bare.id), `shop|orders|null|{}|00:00:00|4|pending|0|t|t|t`; got != want {
			t.Errorf("enqueue(%s) made the row %s, want %s", args, got, want)
		}
	}
}

// An id made in SQL is a UUID version 7: it has the time, and sorts by it.
func TestEnqueueID(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	from := scalar[time.Time](d, `select clock_timestamp()`).Truncate(time.Millisecond)
	id := d.mustEnqueue(`'shop', 'orders', '{}'`).id
	to := scalar[time.Time](d, `select clock_timestamp()`)
	sec, nsec := id.Time().UnixTime()
	if at := time.Unix(sec, nsec); id.Version() != 7 || id.Variant() != uuid.RFC4122 || at.Before(from) || at.After(to) {
		t.Errorf("%s is version %d of %v, want version 7 made between %v and %v", id, id.Version(), at, from, to)
	}
}

// A second event with the key is no error and no row, and the caller gets the id of the first. The
// key is one of its namespace and topic, and rows without one never conflict.
// CONTRACT: C-1, C-11
func TestEnqueueDedupe(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	first := d.mustEnqueue(`'shop', 'orders', '{}', p_dedupe_key => 'k'`)
	again := d.mustEnqueue(`'shop', 'orders', '{"other": true}', p_dedupe_key => 'k'`)
	if !first.inserted || again.inserted || again.id != first.id {
		t.Errorf("first %+v, again %+v: want the first inserted, and its id again", first, again)
	}
	d.exec(`update outbox.outbox_events set status = 'delivered'`)
	if late := d.mustEnqueue(`'shop', 'orders', '{}', p_dedupe_key => 'k'`); late.inserted || late.id != first.id {
		t.Errorf("after delivery: %+v, want the row that stands", late)
	}
	for _, args := range []string{
		`'shop', 'refunds', '{}', p_dedupe_key => 'k'`, `'bank', 'orders', '{}', p_dedupe_key => 'k'`,
		`'shop', 'orders', '{}'`, `'shop', 'orders', '{}'`, `'shop', 'orders', '{}', p_dedupe_key => ''`,
	} {
		if !d.mustEnqueue(args).inserted {
			t.Errorf("enqueue(%s) was taken for a duplicate", args)
		}
	}
	if n := d.events(); n != 6 {
		t.Errorf("%d rows, want 6", n)
	}
	_, err := d.Exec(t.Context(), `insert into outbox.outbox_events (id, namespace, topic, dedupe_key, payload)
		values (gen_random_uuid(), 'shop', 'orders', 'k', '{}')`)
	if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || pg.ConstraintName != "outbox_events_dedupe" {
		t.Errorf("a second row by plain SQL: error is %v, want one of outbox_events_dedupe", err)
	}
}

// Of two transactions with one key, the second waits for the first: it enqueues when that rolls
// back, and gets that row's id when it commits.
// CONTRACT: C-11
func TestEnqueueDedupeRace(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"commit", "rollback"} {
		dsn := pgtest.Migrated(t)
		one, two := newDatabase(t, dsn), newDatabase(t, dsn)
		watch := newDatabase(t, dsn)
		pid := scalar[int](two, `select pg_backend_pid()`)
		one.exec(`begin`)
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
		for !scalar[bool](watch, `select exists (select from pg_stat_activity where pid = $1 and wait_event_type = 'Lock')`, pid) {
			if len(done) > 0 {
				t.Fatalf("the second did not wait: %+v", <-done)
			}
		}
		one.exec(end)
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
func TestEnqueueTenant(t *testing.T) {
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
		if ok != (err == nil) || ok != e.inserted || (d.events() > before) != ok {
			t.Errorf("key %q: %+v, %v, want it taken: %t", key, e, err, ok)
		}
		if err != nil && !strings.Contains(err.Error(), "tenant") {
			t.Errorf("key %q: error is %v, want one about the tenant", key, err)
		}
	}
	d.mustEnqueue(`'shop', 'orders', '{}', p_dedupe_key => 'no tenant, no rule'`)
	d.mustEnqueue(`'shop', 'orders', '{}', p_tenant_id => '` + tenant + `'`)
}

// What is missing, too large or malformed is an error that says so and what to do, never shows the
// payload, and adds no row.
// CONTRACT: C-13, C-73
func TestEnqueueInvalid(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	for args, want := range map[string]string{
		`null, 'orders', '"secret"'`:                                            "namespace is missing",
		`'', 'orders', '"secret"'`:                                              "namespace is missing",
		`'shop', null, '"secret"'`:                                              "topic is missing",
		`'shop', '', '"secret"'`:                                                "topic is missing",
		`'shop', 'orders', null`:                                                "payload is missing",
		`'shop', 'orders', '"secret"', p_max_bytes => 7`:                        "payload has 8 bytes, more than the limit of 7",
		`'shop', 'orders', to_jsonb(repeat('secret', 174763))`:                  "payload has 1048580 bytes, more than the limit of 1048576",
		`'shop', 'orders', to_jsonb(repeat('s', 1048575)), p_max_bytes => null`: "limit of 1048576",
		`'shop', 'orders', '"secret"', p_headers => '["a"]'`:                    "headers are not a JSON object",
		`'shop', 'orders', '"secret"', p_delay => '-1 second'`:                  "delay is negative",
	} {
		_, err := d.enqueue(args)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || !strings.Contains(pg.Message, want) || pg.Code != "22023" || pg.Hint == "" {
			t.Errorf("enqueue(%s): error is %v, want one of code 22023 with %q and a hint", args, err, want)
		} else if all := pg.Message + pg.Detail + pg.Hint; strings.Contains(all, "secret") {
			t.Errorf("enqueue(%s): the error shows the payload: %s", args, all)
		}
	}
	if _, err := d.enqueue(`'shop', 'orders', '{not json}'`); err == nil {
		t.Error("a payload that is not JSON was taken")
	}
	if n := d.events(); n != 0 {
		t.Errorf("%d rows, want none", n)
	}
	d.mustEnqueue(`'shop', 'orders', to_jsonb(repeat('s', 1048574))`) // exactly the limit
}

// There is one enqueue, whatever is run again.
// CONTRACT: C-15
func TestEnqueueOneSignature(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	d.up("outbox")
	const signature = `p_namespace text, p_topic text, p_payload jsonb, p_event_type text DEFAULT NULL::text, ` +
		`p_aggregate_type text DEFAULT NULL::text, p_aggregate_id text DEFAULT NULL::text, ` +
		`p_partition_key text DEFAULT NULL::text, p_tenant_id uuid DEFAULT NULL::uuid, p_dedupe_key text DEFAULT NULL::text, ` +
		`p_headers jsonb DEFAULT '{}'::jsonb, p_delay interval DEFAULT '00:00:00'::interval, p_id uuid DEFAULT NULL::uuid, ` +
		`p_max_bytes integer DEFAULT 1048576, p_lock_key boolean DEFAULT false`
	got := scalar[[]string](d, `select array_agg(pg_get_function_arguments(oid)) from pg_proc
		where proname = 'enqueue' and pronamespace = 'outbox'::regnamespace`)
	if len(got) != 1 || got[0] != signature {
		t.Errorf("signatures of enqueue are %q, want one, %q", got, signature)
	}
}
