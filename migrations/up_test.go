package migrations_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// database is an empty database.
type database struct {
	*testing.T
	*pgx.Conn
	dsn string
}

func newDatabase(t *testing.T, dsn string) database {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return database{t, conn, dsn}
}

func (d database) up(schema string) []migrations.Applied {
	d.Helper()
	applied, err := migrations.Up(d.Context(), d.Conn, schema)
	if err != nil {
		d.Fatal(err)
	}
	return applied
}

func TestUpMakesTheSchema(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Empty(t))
	before, err := migrations.Status(t.Context(), d.Conn, "outbox")
	if err != nil || before.Version != 0 || len(before.Applied) != 0 || len(before.Pending) != migrations.Version {
		t.Fatalf("status of an empty database is %+v, %v", before, err)
	}
	applied := d.up("outbox")
	if len(applied) != migrations.Version {
		t.Fatalf("applied %+v, want %d migrations", applied, migrations.Version)
	}
	for i, a := range applied {
		if a.Version != i+1 || !strings.HasPrefix(a.Name, "000") || len(a.Checksum) != 64 || a.OldestReader < 1 || time.Since(a.AppliedAt) > time.Hour {
			t.Errorf("applied %+v as number %d", a, i+1)
		}
	}
	after, err := migrations.Status(t.Context(), d.Conn, "outbox")
	if err != nil || after.Version != migrations.Version || len(after.Pending) != 0 || !slices.EqualFunc(after.Applied, applied, same) {
		t.Errorf("status is %+v, %v, want %+v", after, err, applied)
	}
	if again := d.up("outbox"); len(again) != 0 {
		t.Errorf("a second Up applied %+v", again)
	}
}

func same(a, b migrations.Applied) bool {
	return a.AppliedAt.Equal(b.AppliedAt) && a.Checksum == b.Checksum && a.Version == b.Version && a.Name == b.Name
}

// Several migrators at once do the work once.
func TestConcurrentMigratorsApplyOnce(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Empty(t)
	var group errgroup.Group
	counts := make([]int, 8)
	for i := range counts {
		d := newDatabase(t, dsn)
		group.Go(func() error {
			applied, err := migrations.Up(t.Context(), d.Conn, "outbox")
			counts[i] = len(applied)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, n := range counts {
		sum += n
	}
	if sum != migrations.Version {
		t.Errorf("eight migrators applied %v, want %d in all", counts, migrations.Version)
	}
}

// The schema is the user's choice; two in one database do not touch each other.
func TestUpLeavesOtherSchemasAlone(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Empty(t))
	longest := strings.Repeat("s", 63)
	pgtest.Exec(d, `create schema "order"`) // a word of SQL, and there already
	for _, schema := range []string{"order", "_2", longest} {
		d.up(schema)
		quoted := pgx.Identifier{schema}.Sanitize()
		pgtest.Exec(d, `select `+quoted+`.enqueue('shop', 'orders', '{}')`)
		if n := pgtest.Value[int](d, `select count(*) from `+quoted+`.outbox_events`); n != 1 {
			t.Errorf("schema %q has %d events, want 1", schema, n)
		}
	}
	if n := pgtest.Value[int](d, `select count(*) from pg_tables where schemaname = 'public'`); n != 0 {
		t.Errorf("%d tables came to be in public", n)
	}
	if path := pgtest.Value[string](d, `show search_path`); path != `"$user", public` {
		t.Errorf("search_path stayed %s", path)
	}
	for _, schema := range []string{"", longest + "s", "pg_outbox", "Outbox", "a-b", `a"b`, "o'brien", "9a"} {
		if _, err := migrations.Up(t.Context(), d.Conn, schema); err == nil || !strings.Contains(err.Error(), "outbox") {
			t.Errorf("schema %q: error is %v, want one that names a good name", schema, err)
		}
		if _, err := migrations.Status(t.Context(), d.Conn, schema); err == nil {
			t.Errorf("status of schema %q has no error", schema)
		}
	}
}

// An applied migration that has changed since is noticed and named, and nothing more is done.
func TestUpRefusesEditedMigration(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	pgtest.Exec(d, `update outbox.outbox_migrations set checksum = repeat('0', 64) where version = 1`)
	_, upErr := migrations.Up(t.Context(), d.Conn, "outbox")
	state, statusErr := migrations.Status(t.Context(), d.Conn, "outbox")
	for _, err := range []error{upErr, statusErr} {
		if err == nil || !strings.Contains(err.Error(), "0001_outbox") || !strings.Contains(err.Error(), "restore") {
			t.Errorf("error is %v, want one that names the migration and the remedy", err)
		}
	}
	if state.Version != migrations.Version {
		t.Errorf("status is %+v, want it with the error", state)
	}
}

// A database that a newer binary has migrated is left as it is.
func TestUpRefusesNewerSchema(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	next := migrations.Version + 1
	pgtest.Exec(d, `insert into outbox.outbox_migrations (version, name, checksum, oldest_reader) values ($1, 'future', 'x', $1)`, next)
	if applied := d.up("outbox"); len(applied) != 0 {
		t.Errorf("applied %+v to a newer schema", applied)
	}
	state, err := migrations.Status(t.Context(), d.Conn, "outbox")
	if err != nil || state.Version != next || len(state.Pending) != 0 {
		t.Errorf("status is %+v, %v, want version %d", state, err, next)
	}
}

// A migration that fails leaves nothing of itself behind.
func TestUpRollsFailedMigrationBack(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Empty(t))
	pgtest.Exec(d, `create schema outbox; create table outbox.outbox_dead_letters (mine integer)`)
	applied, err := migrations.Up(t.Context(), d.Conn, "outbox")
	if err == nil || !strings.Contains(err.Error(), "0001_outbox") || len(applied) != 0 {
		t.Fatalf("Up over a foreign table: %+v, %v", applied, err)
	}
	if n := pgtest.Value[int](d, `select count(*) from pg_tables where schemaname = 'outbox'`); n != 1 {
		t.Errorf("the schema has %d tables, want the foreign one alone", n)
	}
}

// A state that is none, and a row whose columns do not fit its state, are refused by the tables, whoever writes them.
// CONTRACT: C-40
// REQUIREMENT: STORAGE-6, STORAGE-17, cpt-cf-mini-chat-state-usage-outbox-row
func TestTablesRefuseInvalidStates(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Migrated(t))
	d.mustEnqueue(`'shop', 'orders', '{}'`)
	const deadLetter = `insert into outbox.outbox_dead_letters (event_id, namespace, topic, attempts, reason) select id, namespace, topic, 1, `
	for sql, constraint := range map[string]string{
		`update outbox.outbox_events set status = 'failed'`:                    "outbox_events_status",
		`update outbox.outbox_events set status = 'dlq'`:                       "outbox_events_status",
		`update outbox.outbox_events set status = 'dead'`:                      "outbox_events_status",
		`update outbox.outbox_events set dead_reason = 'poison_message'`:       "outbox_events_status",
		`update outbox.outbox_events set status = 'processing'`:                "outbox_events_status",
		`update outbox.outbox_events set locked_by = id, locked_until = now()`: "outbox_events_status",
		deadLetter + `'bored' from outbox.outbox_events`:                       "outbox_dead_letters_reason",
		deadLetter + `'max_retries' from outbox.outbox_events`:                 "outbox_dead_letters_reason",
	} {
		_, err := d.Exec(t.Context(), sql)
		if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || pg.ConstraintName != constraint {
			t.Errorf("%s: %v, want a violation of %s", sql, err, constraint)
		}
	}
	for _, reason := range []string{"max_retries_exceeded", "poison_message", "schema_validation_failed", "processing_timeout", "permanent_failure"} {
		pgtest.Exec(d, deadLetter+`'`+reason+`' from outbox.outbox_events`)
	}
}
