package migrations_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

func withOverview(t *testing.T) database {
	t.Helper()
	d := newDatabase(t, pgtest.Migrated(t))
	d.upOverview("outbox", "shop", true)
	return d
}

func (d database) upOverview(schema, namespace string, want bool) {
	d.Helper()
	installed, err := migrations.UpOverview(d.Context(), d.Conn, schema, migrations.Overview{Namespace: namespace})
	need.Must(d, err == nil && installed == want, "installed is %v, %v, want %v", installed, err, want)
}

// A producer of Overview's table inserts as before: it needs no right but that on the view, and a payload that is not an
// mapping is refused.
// Overview: Schema, outbox.events with 7 columns
// Overview: Backoff & Limits, Payloads must be JSON-serialisable mappings
// CONTRACT: C-14
// REQUIREMENT: OVERVIEW-3
func TestOverviewTakesInserts(t *testing.T) {
	t.Parallel()
	d := withOverview(t)
	producer := d.as(migrations.OverviewProducer)
	// What a producer puts in the way of the tables' names is not used with the owner's rights.
	pgtest.Exec(producer, `create temporary table outbox_events (id uuid)`)
	const id = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	insert := `insert into outbox.events (id, topic, payload, status, attempt_count, next_attempt_at) values ('` + id + `', 'orders', '{"n": 1}', 'pending', 0, now() + interval '5 s')`
	pgtest.Want[string](producer, id, "returned %s, want %s", insert+` returning id::text`)
	pgtest.Want(producer, "t pending 0 t t", "a bare insert returned %q", `insert into outbox.events (topic, payload) values ('orders', '{}') returning concat_ws(' ', id is not null, status, attempt_count, next_attempt_at = now(), created_at = now())`)
	got := pgtest.Value[string](d, `select string_agg(concat_ws(' ', namespace, topic, payload, next_attempt_at - created_at, max_attempts, retry), '; ' order by seq) from outbox.outbox_events`)
	const retry = `{"max": "24h", "base": "60s", "strategy": "Linear"}`
	if want := `shop orders {"n": 1} 00:00:05 32767 ` + retry + `; shop orders {} 00:00:00 32767 ` + retry; got != want {
		t.Errorf("the rows are\n%s\nwant\n%s", got, want)
	}
	pgtest.Exec(producer, `set timezone = 'Europe/Berlin'`) // within 4,800 hours the clocks change, once
	need.That(t, pgtest.Value[bool](producer, `insert into outbox.events (topic, payload, next_attempt_at) values ('later', '{}', now() + interval '4800 hours')
			returning next_attempt_at = now() + interval '4800 hours'`), "next_attempt_at is not the one that was given, where the clocks change before it")
	for sql, want := range map[string]string{
		insert: "is there already",
		`insert into outbox.events (topic, payload) values ('orders', '[1]')`:                     "not a mapping",
		`insert into outbox.events (topic, payload) values ('orders', null)`:                      "the payload is missing",
		`insert into outbox.events (topic, payload, status) values ('orders', '{}', 'processed')`: "is pending",
		`insert into outbox.events (topic, payload, attempt_count) values ('orders', '{}', 1)`:    "no attempt was made",
		`update outbox.events set next_attempt_at = now()`:                                        "permission denied",
		`select * from outbox.outbox_events`:                                                      "permission denied",
		`select outbox.enqueue('shop', 'orders', '{}')`:                                           "permission denied",
	} {
		need.Fails(t, want, "%s: %v, want %q", need.Err(producer.Exec(t.Context(), sql)), sql)
	}
	for _, sql := range []string{`update outbox.events set next_attempt_at = now()`, `delete from outbox.events`} {
		need.Fails(t, "takes INSERT alone", "%s as the owner: %v", need.Err(d.Exec(t.Context(), sql)), sql)
	}
}

// The statuses are Overview's, and attempt_count is that of its worker: failures so far.
// Overview: Status Lifecycle
func TestOverviewHasItsStatuses(t *testing.T) {
	t.Parallel()
	d := withOverview(t)
	for _, row := range []string{`'pending', 0, null, null, null`, `'pending', 2, null, null, null`, `'processing', 3, gen_random_uuid(), now(), null`,
		`'delivered', 1, null, null, null`, `'dead', 10, null, null, 'permanent_failure'`} {
		pgtest.Exec(d, `insert into outbox.outbox_events (id, namespace, topic, payload, status, attempts, locked_by, locked_until, dead_reason)
			values (gen_random_uuid(), 'shop', 'orders', '{}', `+row+`)`)
	}
	pgtest.Exec(d, `insert into outbox.outbox_events (id, namespace, topic, payload) values (gen_random_uuid(), 'other', 'orders', '{}')`)
	got := pgtest.Value[string](d, `select string_agg(o.status || ' ' || attempt_count, ', ' order by seq) from outbox.events as o join outbox.outbox_events using (id)`)
	want := "pending 0, pending 2, processing 2, processed 0, failed 10"
	need.Want(t, want, "%s, want %s", got)
	pgtest.Want(d, 7, "%d columns, want 7", `select count(*) from information_schema.columns where table_schema = 'outbox' and table_name = 'events'`)
}

// Installing again does nothing, another namespace replaces the view and keeps rights, and what is not ours is left
// alone. The outbox itself may be in another schema.
func TestOverviewIsInstalledTwice(t *testing.T) {
	t.Parallel()
	d := withOverview(t)
	producer := d.as(migrations.OverviewProducer)
	d.upOverview("outbox", "shop", false)
	d.upOverview("outbox", `sh"op {schema}`, true)
	pgtest.Exec(producer, `insert into outbox.events (topic, payload) values ('orders', '{}')`)
	pgtest.Want(d, `sh"op {schema}`, "the namespace is %s", `select namespace from outbox.outbox_events`)
	refused := func(d database, schema, namespace, want string) {
		t.Helper()
		need.Fails(t, want, "%v, want %q", need.Err(migrations.UpOverview(t.Context(), d.Conn, schema, migrations.Overview{Namespace: namespace})))
	}
	refused(d, "outbox", "it's", "namespace")
	d.up("second")
	refused(d, "second", "shop", "serves another schema")
	pgtest.Exec(d, `drop view outbox.events; create view outbox.events as select 1 as one`)
	refused(d, "outbox", "shop", "dispatcher migrate up did not make it")
	pgtest.Exec(d, `drop view outbox.events; create table outbox.events (id uuid primary key)`)
	refused(d, "outbox", "shop", "alter table outbox.events rename to events_before")
	pgtest.Exec(d, `alter table outbox.events rename to events_before`)
	d.upOverview("second", "shop", true)
	pgtest.Exec(d, `insert into outbox.events (topic, payload) values ('orders', '{}')`)
	pgtest.Want(d, 1, "%d events in the other schema, want 1", `select count(*) from second.outbox_events`)
}

// What waits to replace a view names who reads that, and no dispatcher.
func TestReplacedViewsNameWhoReadsThem(t *testing.T) {
	t.Parallel()
	for view, test := range map[string]struct {
		with func(*testing.T) database
		up   func(context.Context, database) (bool, error)
		want string
	}{
		"m10_recovery.outbox": {func(t *testing.T) database { return withM10(t, m10) }, func(ctx context.Context, d database) (bool, error) {
			return migrations.UpM10(ctx, d.Conn, "outbox", migrations.M10{Namespace: "shop", Topic: "other"})
		}, "waiting for a lock on a table of schema m10_recovery"},
		"outbox.events": {withOverview, func(ctx context.Context, d database) (bool, error) {
			return migrations.UpOverview(ctx, d.Conn, "outbox", migrations.Overview{Namespace: "other"})
		}, "waiting for a lock on table outbox.events"},
	} {
		t.Run(view, func(t *testing.T) {
			t.Parallel()
			d := test.with(t)
			begin := func(sql string) (process int, end func()) {
				conn := newDatabase(t, d.dsn)
				pgtest.Exec(conn, "begin")
				pgtest.Exec(conn, sql)
				return int(conn.PgConn().PID()), func() { pgtest.Exec(conn, "rollback") }
			}
			_, end := begin("lock table outbox.outbox_events in row exclusive mode") // as a dispatcher does
			defer end()
			reader, end := begin("select from " + view)
			var said string
			ctx := migrations.ReportWaits(t.Context(), func(sentence string) {
				said = sentence
				end()
			})
			installed, err := test.up(ctx, d)
			need.Must(t, err == nil && installed, "installed is %v, %v", installed, err)
			if want := fmt.Sprintf("%s, which the process %d of user ", test.want, reader); !strings.HasPrefix(said, want) {
				t.Errorf("it reports %q, want %q", said, want)
			}
		})
	}
}
