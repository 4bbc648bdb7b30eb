package migrations_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

const header = "-- oldest-reader: 1\n"

// A migration that has to wait for a long reader lets producers pass, and is applied when the reader is gone.
func TestUpBehindAReader(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	reader, producer := newDatabase(t, d.dsn), newDatabase(t, d.dsn)
	pgtest.Exec(reader, `begin`)
	pgtest.Exec(reader, `select count(*) from outbox.outbox_events`)
	const add = header + `alter table outbox_events add column later integer;`
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // for a hang
	defer cancel()
	_, err := migrations.UpFilesOnce(ctx, d.Conn, add)
	if err == nil || !strings.Contains(err.Error(), "_second: ") || !strings.Contains(err.Error(), "pg_stat_activity") {
		t.Errorf("the migration behind a reader: %v, want that it gave up, and why", err)
	}

	type result struct {
		applied []migrations.Applied
		err     error
	}
	done := make(chan result, 1)
	go func() {
		applied, err := migrations.UpFiles(t.Context(), d.Conn, add)
		done <- result{applied, err}
	}()
	pgtest.Exec(producer, `set statement_timeout = '1min'`) // for a hang
	waited := func() bool {
		return pgtest.Value[bool](producer, `select exists (select from pg_locks where not granted and relation = 'outbox.outbox_events'::regclass)`)
	}
	for !waited() { // the migration waits for its lock
		if len(done) > 0 {
			t.Fatalf("the migration did not wait: %+v", <-done)
		}
	}
	for range 20 { // while it waits, and between its tries
		producer.mustEnqueue(`'shop', 'orders', '{}'`)
	}
	pgtest.Exec(reader, `commit`)
	if r := <-done; r.err != nil || len(r.applied) != 1 {
		t.Errorf("after the reader: %+v", r)
	}
	if n := pgtest.Value[int](d, `select count(later) from outbox.outbox_events`); n != 0 {
		t.Errorf("the column has %d values", n)
	}
}

// A login whose transactions are serializable by default migrates at READ COMMITTED all the same.
func TestUpIsolation(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	pgtest.Exec(d, `set default_transaction_isolation = 'serializable'`)
	if _, err := migrations.UpFiles(t.Context(), d.Conn, header+`create table level as select current_setting('transaction_isolation') as name;`); err != nil {
		t.Fatal(err)
	}
	if level := pgtest.Value[string](d, `select name from outbox.level`); level != "read committed" {
		t.Errorf("the migration ran at %s", level)
	}
}

// Who may call a function before a migration that drops and creates it, may call it after.
func TestUpKeepsRights(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	producer, stranger := d.as(migrations.Producer), d.as()
	pgtest.Exec(d, `grant usage on schema outbox to public`)
	const replace = header + `drop function enqueue_batch; drop function enqueue;
		create function enqueue(p_namespace text, p_topic text, p_payload jsonb, p_more integer default 1)
			returns table (id uuid, inserted boolean) language sql as $$ select gen_random_uuid(), true $$;
		revoke all on function enqueue from public;`
	applied, err := migrations.UpFiles(t.Context(), d.Conn, replace)
	if err != nil || len(applied) != 1 {
		t.Fatalf("%+v, %v", applied, err)
	}
	producer.mustEnqueue(`'shop', 'orders', '{}'`)
	stranger.wantRefused(`select outbox.enqueue('shop', 'orders', '{}')`)
}

// A statement that can have no transaction runs without one, is recorded, and what a broken try has left is
// dropped first.
func TestUpOutsideATransaction(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	const index = header + "-- transaction: none\ncreate unique index concurrently if not exists outbox_events_more on outbox_events (topic);"
	for range 2 {
		d.mustEnqueue(`'shop', 'orders', '{}'`)
	}
	if applied, err := migrations.UpFiles(t.Context(), d.Conn, index); err == nil || len(applied) != 0 {
		t.Fatalf("a unique index over equal values: %+v, %v", applied, err)
	}
	const valid = `select indisvalid from pg_index where indexrelid = 'outbox.outbox_events_more'::regclass`
	if pgtest.Value[bool](d, valid) {
		t.Fatal("the broken try left no invalid index: the test tests nothing")
	}
	pgtest.Exec(d, `delete from outbox.outbox_events`)
	applied, err := migrations.UpFiles(t.Context(), d.Conn, index, header+`create table third ();`)
	if err != nil || len(applied) != 2 || !strings.HasSuffix(applied[0].Name, "_second") {
		t.Fatalf("the second try: %+v, %v", applied, err)
	}
	if !pgtest.Value[bool](d, valid) {
		t.Error("the index is still invalid")
	}
	if n := pgtest.Value[int](d, `select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()`); n != 0 {
		t.Errorf("%d locks are left", n)
	}
	if path := pgtest.Value[string](d, `show search_path`); path != `"$user", public` {
		t.Errorf("search_path stayed %s", path)
	}
	if again, err := migrations.UpFiles(t.Context(), d.Conn, index, header+`create table third ();`); err != nil || len(again) != 0 {
		t.Errorf("again: %+v, %v", again, err)
	}
}

// While an index is built concurrently behind an old transaction, producers continue, and a second migrator waits
// and finds the work done.
func TestUpConcurrentlyOutside(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	old, producer, second := newDatabase(t, d.dsn), newDatabase(t, d.dsn), newDatabase(t, d.dsn)
	pgtest.Exec(old, `begin isolation level repeatable read`)
	pgtest.Exec(old, `select count(*) from outbox.outbox_events`)
	const index = header + "-- transaction: none\ncreate index concurrently if not exists outbox_events_more on outbox_events (created_at);"
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // for a hang
	defer cancel()
	counts := make(chan int, 2)
	for _, conn := range []database{d, second} {
		go func() {
			applied, err := migrations.UpFiles(ctx, conn.Conn, index)
			if err != nil {
				t.Error(err)
			}
			counts <- len(applied)
		}()
	}
	pgtest.Exec(producer, `set statement_timeout = '1min'`) // for a hang
	for !pgtest.Value[bool](producer, `select exists (select from pg_stat_activity where query like '%index concurrently%' and wait_event_type = 'Lock')`) {
		producer.mustEnqueue(`'shop', 'orders', '{}'`)
		if len(counts) > 0 {
			t.Fatal("the index did not wait for the old transaction: the test tests nothing")
		}
	}
	producer.mustEnqueue(`'shop', 'orders', '{}'`)
	pgtest.Exec(old, `commit`)
	if n := <-counts + <-counts; n != 1 {
		t.Errorf("two migrators applied %d migrations, want one", n)
	}
}
