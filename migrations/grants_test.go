package migrations_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
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
			need.Want(d, nil, "%s: %v", need.Err(d.Exec(context.Background(), sql)), sql)
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
	need.OK(d, err)
	config.User, config.Password = role, "test"
	conn, err := pgx.ConnectConfig(d.Context(), config)
	need.OK(d, err)
	d.Cleanup(func() { _ = conn.Close(context.Background()) })
	return database{d.T, conn, d.dsn}
}

// wantRefused checks that each statement fails for want of a right.
func (d database) wantRefused(statements ...string) {
	d.Helper()
	for _, sql := range statements {
		_, err := d.Exec(d.Context(), sql)
		pg := (*pgconn.PgError)(nil)
		need.That(d, errors.As(err, &pg) && pg.Code == "42501", "%s: error is %v, want insufficient privilege", sql, err)
	}
}

// A producer may call enqueue: its rows go in checked, and it reads and changes nothing.
func TestProducerMayEnqueueAlone(t *testing.T) {
	t.Parallel()
	owner := newDatabase(t, pgtest.Migrated(t))
	producer := owner.as(migrations.Producer)
	first := producer.mustEnqueue(`'shop', 'orders', '{}', p_dedupe_key => 'k'`)
	again := producer.mustEnqueue(`'shop', 'orders', '{}', p_dedupe_key => 'k'`)
	need.That(t, !again.inserted && again.id == first.id, "a duplicate gave %+v", again)
	both := producer.batch(`'{shop,shop}', '{orders,orders}', '{"{}","{}"}', p_dedupe_keys => '{k,l}'`)
	need.That(t, both[0] == (enqueued{first.id, false}) && both[1].inserted, "a batch gave %+v", both)
	taken := pgtest.Value[string](producer, `select string_agg(result, ' ') from (select result from outbox.withdraw('shop', 'orders', 'l') union all
		select result from outbox.withdraw_batch('{shop}', '{orders}', '{m}')) as said`)
	need.Want(t, "withdrawn unknown", "withdrawals say %s, want %s", taken)
	// What a producer puts in the way of the function's names is not used with the owner's rights.
	pgtest.Exec(producer, `create temporary table outbox_events (id uuid, like_the_real_one text)`)
	producer.mustEnqueue(`'shop', 'orders', '{}'`)
	producer.batch(`'{shop}', '{orders}', '{"{}"}'`)
	need.Want(t, 4, "%d rows, want 4", owner.events())
	producer.wantRefused(
		`select * from outbox.outbox_events`,
		`insert into outbox.outbox_events (id, namespace, topic, payload) values (gen_random_uuid(), 'a', 'b', '{}')`,
		`update outbox.outbox_events set status = 'delivered'`,
		`delete from outbox.outbox_events`,
		`select * from outbox.outbox_dead_letters`,
		`select * from outbox.outbox_workers`,
		`select outbox.outbox_withdrawable(e, 0, now()) from outbox.outbox_events as e`,
		`select nextval('outbox.outbox_leases')`,
		`select outbox.enqueue_retry_problem('{}')`,
		`select outbox.outbox_replay_begin(gen_random_uuid(), 'shop', 'discard', 'CHG', 'ada', '{}', 1, 0, 50, '{1}')`,
		`create table outbox.mine ()`,
	)
}

// A dispatcher's verbs are tested with its grants in package pgstore. Here is what it may not do.
// REQUIREMENT: STORAGE-55
func TestDispatcherMayDoNoMore(t *testing.T) {
	t.Parallel()
	owner := newDatabase(t, pgtest.Migrated(t))
	owner.mustEnqueue(`'shop', 'orders', '{}'`)
	dispatcher := owner.as(migrations.Dispatcher)
	state, err := migrations.Status(t.Context(), dispatcher.Conn, "outbox")
	need.That(t, err == nil && state.Version == migrations.Version, "status with a dispatcher's rights is %+v, %v", state, err)
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
	need.That(t, need.Err(migrations.Up(t.Context(), owner.as().Conn, "outbox")) != nil, "a role without rights migrated")
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
	need.Want(t, nil, "status with the rights of a replay login: %v", need.Err(migrations.Status(t.Context(), login.Conn, "outbox")))
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
		need.OK(t, owner.QueryRow(t.Context(), query).Scan(&text))
		return text
	}
	state := func(want string) {
		t.Helper()
		need.Want(t, want, "the dead letters are %s, want %s", look(`select string_agg(concat_ws(' ', l.id, coalesce(resolved_by, 'open'), e.status), ', ' order by l.id)
			from outbox.outbox_dead_letters as l join outbox.outbox_events as e on e.id = l.event_id`))
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
	pgtest.Want[string](d, "", "public may execute %s", `select coalesce(string_agg(oid::regprocedure::text, ', '), '') from pg_proc
		where pronamespace in ('outbox'::regnamespace, 'm10_recovery'::regnamespace) and has_function_privilege('public', oid, 'execute')`)
}

const week = 7 * 24 * time.Hour

func (d database) setJournal(enabled bool, retention time.Duration) bool {
	d.Helper()
	changed, err := migrations.SetJournal(d.Context(), d.Conn, "outbox", migrations.Journal{Enabled: enabled, Retention: retention})
	need.OK(d, err)
	return changed
}

// triggers counts those of the outbox.
func (d database) triggers() int64 {
	d.Helper()
	return pgtest.Value[int64](d, `select count(*) from pg_trigger where tgname like 'outbox_journal%' and tgrelid in ('outbox.outbox_events'::regclass, 'outbox.outbox_dead_letters'::regclass)`)
}

// days are the partitions of the journal.
func (d database) days() int64 {
	d.Helper()
	return pgtest.Value[int64](d, `select count(*) from pg_inherits where inhparent = 'outbox.outbox_journal'::regclass`)
}

// While the journal is off there is nothing that could cost something. On, it has each change, whoever makes it; a trigger
// that was turned off is there again, and the journal starts again.
//
// CONTRACT: C-61
// REQUIREMENT: STORAGE-49
func TestJournalHasEachChange(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	d.mustEnqueue(`'shop', 'orders', '{}'`)
	need.That(t, d.triggers() == 0 && d.days() == 1 && !d.setJournal(false, week) && d.triggers() == 0, "off: %d triggers, %d partitions", d.triggers(), d.days())
	need.That(t, d.setJournal(true, week) && !d.setJournal(true, 2*week) && d.triggers() == 7 && d.days() == 9, "on: %d triggers, %d partitions", d.triggers(), d.days())
	pgtest.Want(d, "true 336:00:00", "the settings are %s", `select enabled || ' ' || retention from outbox.outbox_journal_settings`)
	d.mustEnqueue(`'shop', 'orders', '{}'`)
	pgtest.Exec(d, `update outbox.outbox_events set status = 'delivered'; delete from outbox.outbox_events; truncate outbox.outbox_events`)
	const all = `select string_agg(concat_ws(' ', operation, seq, before, after), ', ' order by lsn, seq) from outbox.outbox_journal`
	got, want := pgtest.Value[string](d, all), "checkpoint, insert 2 pending, change 1 pending delivered, change 2 pending delivered, "+
		"change 1 delivered, change 2 delivered, truncate"
	need.Want(t, want, "the journal has\n%s\nwant\n%s", got)
	pgtest.Exec(d, `alter table outbox.outbox_events disable trigger outbox_journal_changed`)
	before := pgtest.Value[time.Time](d, `select since from outbox.outbox_journal_settings`)
	need.That(t, d.setJournal(true, week) && pgtest.Value[time.Time](d, `select since from outbox.outbox_journal_settings`).After(before),
		"want a disabled trigger reported and the journal started again")
	need.That(t, d.setJournal(false, week) && d.triggers() == 0, "off again: %d triggers", d.triggers())
	pgtest.Want[int64](d, 8, "%d records are kept, want 8", `select count(*) from outbox.outbox_journal`)
	need.Fails(t, "outbox_journal_settings_retention_check", "a retention of an hour: %v", need.Err(migrations.SetJournal(t.Context(), d.Conn, "outbox", migrations.Journal{Enabled: true, Retention: time.Hour})))
}

// A trigger's function that joins says how: what the function that makes the change has set for its own plans holds for it too,
// and an operation on dead letters would take the square of their number.
// CONTRACT: C-61
func TestTriggersJoinByTheirOwnPlan(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	const joins = `select count(*) from pg_proc where pronamespace = 'outbox'::regnamespace and prorettype = 'trigger'::regtype and prosrc ~* '\mjoin\M'`
	need.That(t, pgtest.Value[int](d, joins) >= 2, "no trigger joins, so this shows nothing")
	pgtest.Want(d, "", "these join, and their plan is that of who fires them: %s%s",
		strings.Replace(joins, "count(*)", "coalesce(string_agg(proname, ', '), '')", 1)+` and not coalesce(proconfig @> '{enable_hashjoin=on,enable_nestloop=off}', false)`)
}

// To turn the journal on waits for who has written events and has not committed: the journal has every change from
// where it begins.
func TestJournalWaitsForWriters(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Migrated(t)
	d, writer := newDatabase(t, dsn), newDatabase(t, dsn)
	tx, err := writer.Begin(t.Context())
	need.OK(t, err)
	need.OK(t, need.Err(tx.Exec(t.Context(), `select outbox.enqueue('shop', 'orders', '{}')`)))
	need.Fails(t, "pg_stat_activity shows it", "next to a writer: %v", migrations.SetJournalOnce(t.Context(), d.Conn))
	need.OK(t, tx.Commit(t.Context()))
	need.Want(t, nil, "%v", migrations.SetJournalOnce(t.Context(), d.Conn))
	need.That(t, pgtest.Value[bool](d, `select enabled and since > (select created_at from outbox.outbox_events) from outbox.outbox_journal_settings`),
		"it does not begin after the writer")
}

// The days of the journal go by a login with a dispatcher's few rights, as the owner has set it, and not those that are
// younger. A transaction that uses the journal keeps a day's table from being dropped, not from being emptied, and no writer
// waits for it.
//
// CONTRACT: C-60, C-61
// REQUIREMENT: STORAGE-24
func TestJournalKeepsYoungDays(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Migrated(t)
	owner := newDatabase(t, dsn)
	dispatcher := owner.as(migrations.Dispatcher)
	keep := func() int64 {
		t.Helper()
		return pgtest.Value[int64](dispatcher, `select outbox.outbox_journal_keep()`)
	}
	record := func(age string) {
		t.Helper()
		pgtest.Exec(owner, `insert into outbox.outbox_journal (at, lsn, xid, operation, login) values (now() - $1::interval, '0/0', pg_current_xact_id(), 'insert', 'me')`, age)
	}
	owner.setJournal(true, week)
	pgtest.Exec(owner, `create table outbox.outbox_journal_20200101 partition of outbox.outbox_journal for values from ('2020-01-01 00:00:00+00') to ('2020-01-02 00:00:00+00')`)
	pgtest.Exec(owner, `insert into outbox.outbox_journal (at, lsn, xid, operation, login) values ('2020-01-01 12:00:00+00', '0/0', pg_current_xact_id(), 'insert', 'me')`)
	record("6 days")

	user, err := newDatabase(t, dsn).BeginTx(t.Context(), pgx.TxOptions{})
	need.OK(t, err)
	defer func() { _ = user.Rollback(context.WithoutCancel(t.Context())) }()
	need.OK(t, need.Err(user.Exec(t.Context(), `select outbox.enqueue('shop', 'orders', '{}')`)))
	if n := keep(); n != 1 || owner.days() != 10 || pgtest.Value[int64](owner, `select count(*) from outbox.outbox_journal where at < '2021-01-01'`) != 0 {
		t.Errorf("in use: %d days removed, %d partitions", n, owner.days())
	}
	need.OK(t, user.Commit(t.Context()))
	n := keep()
	need.That(t, n == 1 && owner.days() == 9, "then: %d days removed, %d partitions", n, owner.days())
	pgtest.Want[int64](owner, 1, "%d records of 6 days ago, want 1", `select count(*) from outbox.outbox_journal where at < now() - interval '1 day'`)

	// No day was made: records go to the default partition, and from there when they are old.
	const dropDays = `do $$ declare name text; begin
		for name in select inhrelid::regclass::text from pg_inherits where inhparent = 'outbox.outbox_journal'::regclass and inhrelid <> 'outbox.outbox_journal_default'::regclass loop
			execute 'drop table ' || name; end loop; end $$`
	pgtest.Exec(owner, dropDays)
	owner.mustEnqueue(`'shop', 'orders', '{}'`)
	pgtest.Exec(owner, `insert into outbox.outbox_journal (at, lsn, xid, operation, login) select now() - interval '8 days', '0/0', pg_current_xact_id(), 'insert', 'me' from generate_series(1, 20001)`)
	for _, left := range []int64{1, 0} {
		if n := keep(); n != 1 || owner.days() != 1 || pgtest.Value[int64](owner, `select count(*) from outbox.outbox_journal where at < now() - interval '7 days'`) != left {
			t.Errorf("with old records in the default partition: %d removed, %d partitions, want 1 and no new one, and %d records left", n, owner.days(), left)
		}
	}
	for _, days := range []int64{2, 3} {
		if n := keep(); n != 0 || owner.days() != days || pgtest.Value[bool](owner, `select exists (select from outbox.outbox_journal_default where to_regclass(to_char(at at time zone 'UTC', '"outbox.outbox_journal_"YYYYMMDD')) is not null)`) {
			t.Errorf("with records of today in the default partition: %d removed, %d partitions, want none removed and %d, without today's", n, owner.days(), days)
		}
	}
	for _, c := range []struct {
		bound string
		days  int64
	}{{"256 MB", 2}, {"2 GB", 1}} {
		pgtest.Exec(owner, dropDays)
		pgtest.Exec(owner, `do $$ begin execute replace(pg_get_functiondef('outbox.outbox_journal_keep'::regproc), '`+c.bound+`', '0'); end $$`)
		for range 2 {
			if n := keep(); n != 0 || owner.days() != c.days ||
				c.days == 2 && !pgtest.Value[bool](owner, `select to_regclass(to_char(now() at time zone 'UTC' + interval '1 day', '"outbox.outbox_journal_"YYYYMMDD')) is not null`) {
				t.Errorf("with a default partition larger than %s: %d removed, %d partitions, want %d, of which one is tomorrow's up to 2 GB", c.bound, n, owner.days(), c.days)
			}
		}
	}
	since := pgtest.Value[time.Duration](owner, `select now() - since from outbox.outbox_journal_settings`)
	need.That(t, since <= week+time.Minute, "the journal says that it has every change for %s", since)
	// What config/prometheus/runbooks/OutboxRetentionFails.md says.
	pgtest.Exec(owner, `select outbox.outbox_journal_set(false, retention) from outbox.outbox_journal_settings`)
	pgtest.Exec(owner, `truncate outbox.outbox_journal_default`)
	pgtest.Exec(owner, `select outbox.outbox_journal_set(true, retention) from outbox.outbox_journal_settings`)
	need.That(t, owner.days() == 9 && pgtest.Value[bool](owner, `select retention = '7 days' and now() - since < interval '1 minute' from outbox.outbox_journal_settings`),
		"emptied by the owner: %d partitions, want a week's, and a journal that begins now", owner.days())
	owner.setJournal(false, week)
	dispatcher.wantRefused(
		`insert into outbox.outbox_journal (at, lsn, xid, operation, login) values (now(), '0/0', pg_current_xact_id(), 'insert', 'me')`,
		`update outbox.outbox_journal set login = 'another'`,
		`delete from outbox.outbox_journal`,
		`truncate outbox.outbox_journal`,
		`update outbox.outbox_journal_settings set retention = '1 day'`,
		`select outbox.outbox_journal_set(true)`,
	)
}
