package migrations_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

const week = 7 * 24 * time.Hour

func (d database) setJournal(enabled bool, retention time.Duration) bool {
	d.Helper()
	changed, err := migrations.SetJournal(d.Context(), d.Conn, "outbox", migrations.Journal{Enabled: enabled, Retention: retention})
	if err != nil {
		d.Fatal(err)
	}
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
func TestSetJournal(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	d.mustEnqueue(`'shop', 'orders', '{}'`)
	if d.triggers() != 0 || d.days() != 1 || d.setJournal(false, week) || d.triggers() != 0 {
		t.Errorf("off: %d triggers, %d partitions", d.triggers(), d.days())
	}
	if !d.setJournal(true, week) || d.setJournal(true, 2*week) || d.triggers() != 6 || d.days() != 9 {
		t.Errorf("on: %d triggers, %d partitions", d.triggers(), d.days())
	}
	if got := pgtest.Value[string](d, `select enabled || ' ' || retention from outbox.outbox_journal_settings`); got != "true 336:00:00" {
		t.Errorf("the settings are %s", got)
	}
	d.mustEnqueue(`'shop', 'orders', '{}'`)
	pgtest.Exec(d, `update outbox.outbox_events set status = 'delivered'; delete from outbox.outbox_events; truncate outbox.outbox_events`)
	const all = `select string_agg(concat_ws(' ', operation, seq, before, after), ', ' order by lsn, seq) from outbox.outbox_journal`
	if got, want := pgtest.Value[string](d, all), "checkpoint, insert 2 pending, change 1 pending delivered, change 2 pending delivered, "+
		"change 1 delivered, change 2 delivered, truncate"; got != want {
		t.Errorf("the journal has\n%s\nwant\n%s", got, want)
	}
	pgtest.Exec(d, `alter table outbox.outbox_events disable trigger outbox_journal_changed`)
	before := pgtest.Value[time.Time](d, `select since from outbox.outbox_journal_settings`)
	if !d.setJournal(true, week) || !pgtest.Value[time.Time](d, `select since from outbox.outbox_journal_settings`).After(before) {
		t.Error("want a disabled trigger reported and the journal started again")
	}
	if !d.setJournal(false, week) || d.triggers() != 0 {
		t.Errorf("off again: %d triggers", d.triggers())
	}
	if n := pgtest.Value[int64](d, `select count(*) from outbox.outbox_journal`); n != 8 {
		t.Errorf("%d records are kept, want 8", n)
	}
	_, err := migrations.SetJournal(t.Context(), d.Conn, "outbox", migrations.Journal{Enabled: true, Retention: time.Hour})
	if err == nil || !strings.Contains(err.Error(), "outbox_journal_settings_retention_check") {
		t.Errorf("a retention of an hour: %v", err)
	}
}

// To turn the journal on waits for who has written events and has not committed: the journal has every change from
// where it begins.
func TestJournalWaitsForWriters(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Migrated(t)
	d, writer := newDatabase(t, dsn), newDatabase(t, dsn)
	tx, err := writer.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select outbox.enqueue('shop', 'orders', '{}')`); err != nil {
		t.Fatal(err)
	}
	if err := migrations.SetJournalOnce(t.Context(), d.Conn); err == nil || !strings.Contains(err.Error(), "pg_stat_activity shows it") {
		t.Errorf("next to a writer: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := migrations.SetJournalOnce(t.Context(), d.Conn); err != nil {
		t.Error(err)
	}
	if !pgtest.Value[bool](d, `select enabled and since > (select created_at from outbox.outbox_events) from outbox.outbox_journal_settings`) {
		t.Error("it does not begin after the writer")
	}
}

// The days of the journal go by a login with a dispatcher's few rights, as the owner has set it, and not those that are
// younger. A transaction that uses the journal keeps a day's table from being dropped, not from being emptied, and no writer
// waits for it.
//
// CONTRACT: C-60, C-61
// REQUIREMENT: STORAGE-24
func TestJournalKeep(t *testing.T) {
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
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = user.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := user.Exec(t.Context(), `select outbox.enqueue('shop', 'orders', '{}')`); err != nil {
		t.Fatal(err)
	}
	if n := keep(); n != 1 || owner.days() != 10 || pgtest.Value[int64](owner, `select count(*) from outbox.outbox_journal where at < '2021-01-01'`) != 0 {
		t.Errorf("in use: %d days removed, %d partitions", n, owner.days())
	}
	if err := user.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := keep(); n != 1 || owner.days() != 9 {
		t.Errorf("then: %d days removed, %d partitions", n, owner.days())
	}
	if n := pgtest.Value[int64](owner, `select count(*) from outbox.outbox_journal where at < now() - interval '1 day'`); n != 1 {
		t.Errorf("%d records of 6 days ago, want 1", n)
	}

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
	if since > week+time.Minute {
		t.Errorf("the journal says that it has every change for %s", since)
	}
	// What config/prometheus/runbooks/OutboxRetentionFails.md says.
	pgtest.Exec(owner, `select outbox.outbox_journal_set(false, retention) from outbox.outbox_journal_settings`)
	pgtest.Exec(owner, `truncate outbox.outbox_journal_default`)
	pgtest.Exec(owner, `select outbox.outbox_journal_set(true, retention) from outbox.outbox_journal_settings`)
	if owner.days() != 9 || !pgtest.Value[bool](owner, `select retention = '7 days' and now() - since < interval '1 minute' from outbox.outbox_journal_settings`) {
		t.Errorf("emptied by the owner: %d partitions, want a week's, and a journal that begins now", owner.days())
	}
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
