package migrations_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// as returns a connection of a new role that has the grants of the kinds and nothing else.
func (d database) as(kinds ...migrations.Kind) database {
	d.Helper()
	role := "outbox_test_" + strings.ToLower(rand.Text())
	quoted := pgx.Identifier{role}.Sanitize()
	pgtest.Exec(d, `create role `+quoted+` login password 'test'`)
	d.Cleanup(func() {
		for _, sql := range []string{`drop owned by ` + quoted, `drop role ` + quoted} {
			if _, err := d.Exec(context.Background(), sql); err != nil {
				d.Errorf("%s: %v", sql, err)
			}
		}
	})
	for _, kind := range kinds {
		for range 2 { // as after each migration
			for _, sql := range migrations.Grants("outbox", role, kind) {
				pgtest.Exec(d, sql)
			}
		}
	}
	config, err := pgx.ParseConfig(d.dsn)
	if err != nil {
		d.Fatal(err)
	}
	config.User, config.Password = role, "test"
	conn, err := pgx.ConnectConfig(d.Context(), config)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { _ = conn.Close(context.Background()) })
	return database{d.T, conn, d.dsn}
}

// wantRefused checks that each statement fails for want of a right.
func (d database) wantRefused(statements ...string) {
	d.Helper()
	for _, sql := range statements {
		_, err := d.Exec(d.Context(), sql)
		if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || pg.Code != "42501" {
			d.Errorf("%s: error is %v, want insufficient privilege", sql, err)
		}
	}
}

// A producer may call enqueue: its rows go in checked, and it reads and changes nothing.
func TestGrantsProducer(t *testing.T) {
	t.Parallel()
	owner := newDatabase(t, pgtest.Migrated(t))
	producer := owner.as(migrations.Producer)
	first := producer.mustEnqueue(`'shop', 'orders', '{}', p_dedupe_key => 'k'`)
	if again := producer.mustEnqueue(`'shop', 'orders', '{}', p_dedupe_key => 'k'`); again.inserted || again.id != first.id {
		t.Errorf("a duplicate gave %+v", again)
	}
	if both := producer.batch(`'{shop,shop}', '{orders,orders}', '{"{}","{}"}', p_dedupe_keys => '{k,l}'`); both[0] != (enqueued{first.id, false}) || !both[1].inserted {
		t.Errorf("a batch gave %+v", both)
	}
	// What a producer puts in the way of the function's names is not used with the owner's rights.
	pgtest.Exec(producer, `create temporary table outbox_events (id uuid, like_the_real_one text)`)
	producer.mustEnqueue(`'shop', 'orders', '{}'`)
	producer.batch(`'{shop}', '{orders}', '{"{}"}'`)
	if n := owner.events(); n != 4 {
		t.Errorf("%d rows, want 4", n)
	}
	producer.wantRefused(
		`select * from outbox.outbox_events`,
		`insert into outbox.outbox_events (id, namespace, topic, payload) values (gen_random_uuid(), 'a', 'b', '{}')`,
		`update outbox.outbox_events set status = 'delivered'`,
		`delete from outbox.outbox_events`,
		`select * from outbox.outbox_dead_letters`,
		`select * from outbox.outbox_workers`,
		`select nextval('outbox.outbox_leases')`,
		`select outbox.enqueue_retry_problem('{}')`,
		`select outbox.outbox_replay_begin(gen_random_uuid(), 'shop', 'discard', 'CHG', 'ada', '{}', 1, 0, 50, '{1}')`,
		`create table outbox.mine ()`,
	)
}

// A dispatcher's verbs are tested with its grants in package pgstore. Here is what it may not do.
// REQUIREMENT: STORAGE-55
func TestGrantsDispatcher(t *testing.T) {
	t.Parallel()
	owner := newDatabase(t, pgtest.Migrated(t))
	owner.mustEnqueue(`'shop', 'orders', '{}'`)
	dispatcher := owner.as(migrations.Dispatcher)
	state, err := migrations.Status(t.Context(), dispatcher.Conn, "outbox")
	if err != nil || state.Version != migrations.Version {
		t.Errorf("status with a dispatcher's rights is %+v, %v", state, err)
	}
	pgtest.Exec(dispatcher, `select nextval('outbox.outbox_leases')`)
	pgtest.Exec(dispatcher, `insert into outbox.outbox_workers (worker, dispatcher, namespace) values (gen_random_uuid(), 'shop', 'shop')
		on conflict (worker) do update set seen_at = now()`)
	pgtest.Exec(dispatcher, `delete from outbox.outbox_workers where seen_at < now() - interval '1 minute'`)
	pgtest.Exec(dispatcher, `update outbox.outbox_dead_letters set resolution = 'expired', resolved_at = now(), resolved_by = 'retention'`)
	pgtest.Exec(dispatcher, `delete from outbox.outbox_dead_letters`)
	pgtest.Exec(dispatcher, `insert into outbox.outbox_sweeps (name) values ('retention')`)
	pgtest.Exec(dispatcher, `update outbox.outbox_sweeps set position = 1`)
	pgtest.Exec(dispatcher, `select outbox.outbox_replay_sweep('shop', '30 days')`)
	dispatcher.wantRefused(
		`delete from outbox.outbox_replays`,
		`update outbox.outbox_replays set finished_at = now()`,
		`update outbox.outbox_dead_letters set replay_state = 'delivered'`,
		`delete from outbox.outbox_sweeps`,
		`select setval('outbox.outbox_leases', 1)`,
		`drop table outbox.outbox_events`,
		`truncate outbox.outbox_events`,
		`alter table outbox.outbox_events add column x integer`,
		`insert into outbox.outbox_events (id, namespace, topic, payload) values (gen_random_uuid(), 'a', 'b', '{}')`,
		`update outbox.outbox_dead_letters set reason = 'poison_message'`,
		`update outbox.outbox_dead_letters set event_id = event_id`,
		`insert into outbox.outbox_migrations (version, name, checksum, oldest_reader) values (99, 'x', 'x', 99)`,
		`update outbox.outbox_migrations set checksum = ''`,
		`select outbox.enqueue('shop', 'orders', '{}')`,
		`select outbox.enqueue_batch('{shop}', '{orders}', '{"{}"}')`,
		`select outbox.outbox_replay_begin(gen_random_uuid(), 'shop', 'discard', 'CHG', 'ada', '{}', 1, 0, 50, '{1}')`,
		`create table outbox.mine ()`,
	)
	if _, err := migrations.Up(t.Context(), owner.as().Conn, "outbox"); err == nil {
		t.Error("a role without rights migrated")
	}
}

// A replay login replays and discards with its grants in package replay. Here is what it may not do: of events and
// dead letters it changes nothing but by the functions of an operation, which do nothing but what that is for, in one
// namespace, and write down the login.
// CONTRACT: C-42
// REQUIREMENT: STORAGE-55
func TestGrantsReplayLogin(t *testing.T) {
	t.Parallel()
	owner := newDatabase(t, pgtest.Migrated(t))
	owner.mustEnqueue(`'shop', 'orders', '{}'`)
	pgtest.Exec(owner, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts, resolution, resolved_at, resolved_by)
		select id, namespace, topic, 'poison_message', 1, case n when 2 then 'discarded' end, case n when 2 then now() end, case n when 2 then 'bob' end
		from outbox.outbox_events cross join generate_series(1, 2) as n`)
	login := owner.as(migrations.ReplayLogin)
	if _, err := migrations.Status(t.Context(), login.Conn, "outbox"); err != nil {
		t.Errorf("status with the rights of a replay login: %v", err)
	}
	pgtest.Exec(login, `select * from outbox.outbox_dead_letters`)
	login.wantRefused(
		`select payload from outbox.outbox_events`,
		`select headers from outbox.outbox_events`,
		`select dedupe_key from outbox.outbox_events`,
		`select * from outbox.outbox_events`,
		`select id from outbox.outbox_events for update`,
		`insert into outbox.outbox_events (id, namespace, topic, payload) values (gen_random_uuid(), 'a', 'b', '{}')`,
		`update outbox.outbox_events set status = 'pending'`,
		`delete from outbox.outbox_events`,
		`insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts) values (gen_random_uuid(), 'a', 'b', 'poison_message', 1)`,
		`update outbox.outbox_dead_letters set resolution = null, resolved_at = null, resolved_by = null`,
		`delete from outbox.outbox_dead_letters`,
		`update outbox.outbox_replays set requested_by = 'bob'`,
		`delete from outbox.outbox_replays`,
		`update outbox.outbox_replays set delivered = 1000000, finished_at = now()`,
		`insert into outbox.outbox_replays (id, namespace, action, reason, requested_by, login, filter, rate, canary, abort_at) values (gen_random_uuid(), 'shop', 'replay', 'CHG', 'the-ceo', 'ceo', '{}', 1, 0, 50)`,
		`update outbox.outbox_dead_letters set replay_state = 'delivered'`,
		`select outbox.outbox_replay_sweep('', '0')`,
		`select * from outbox.outbox_workers`,
		`select nextval('outbox.outbox_leases')`,
		`select outbox.enqueue('shop', 'orders', '{}')`,
		`create table outbox.mine ()`,
	)

	// The event is not dead: a replay of its open dead letter changes neither. A discard resolves the open dead letter, and
	// leaves the one that bob resolved. Neither takes what is of another namespace.
	look := func(query string) (text string) {
		t.Helper()
		if err := owner.QueryRow(t.Context(), query).Scan(&text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	state := func(want string) {
		t.Helper()
		if got := look(`select string_agg(concat_ws(' ', l.id, coalesce(resolved_by, 'open'), e.status), ', ' order by l.id)
			from outbox.outbox_dead_letters as l join outbox.outbox_events as e on e.id = l.event_id`); got != want {
			t.Errorf("the dead letters are %s, want %s", got, want)
		}
	}
	begin := func(n int, namespace, action string) {
		t.Helper()
		pgtest.Exec(login, `select outbox.outbox_replay_begin($1::text::uuid, $2, $3, 'CHG', 'alice', '{}', 1, 0, 50, '{1,2}')`, fmt.Sprintf("00000000-0000-0000-0000-00000000000%d", n), namespace, action)
	}
	begin(1, "shop", "replay")
	pgtest.Exec(login, `select outbox.outbox_replay_step(id, 10) from outbox.outbox_replays`)
	state("1 open pending, 2 bob pending")
	begin(2, "bills", "discard")
	begin(3, "bills", "replay")
	begin(4, "bills", "reopen")
	state("1 open pending, 2 bob pending")
	begin(5, "shop", "discard")
	begin(5, "shop", "replay") // it is there
	state("1 alice pending, 2 bob pending")
	if got, want := look(`select string_agg(concat_ws(' ', action, waiting, not_dead, discarded, reopened, claimed), ', ' order by id) from outbox.outbox_replays`),
		"replay 0 1 0 0 1, discard 0 0 0 0 2, replay 0 0 0 0 2, reopen 0 0 0 0 2, discard 0 0 1 0 1"; got != want {
		t.Errorf("the operations are %s, want %s", got, want)
	}
	if got, want := look(`select string_agg(distinct login, ' ') from outbox.outbox_replays`), login.Config().User; got != want {
		t.Errorf("they were begun by %s, want %s", got, want)
	}
}

// No function is for public, so that what a role uses of them is among its grants: the tests of its kind run with these alone.
func TestNoFunctionIsForPublic(t *testing.T) {
	t.Parallel()
	d := withM10(t, m10)
	d.upOverview("outbox", "shop", true)
	if got := pgtest.Value[string](d, `select coalesce(string_agg(oid::regprocedure::text, ', '), '') from pg_proc
		where pronamespace in ('outbox'::regnamespace, 'm10_recovery'::regnamespace) and has_function_privilege('public', oid, 'execute')`); got != "" {
		t.Errorf("public may execute %s", got)
	}
}
