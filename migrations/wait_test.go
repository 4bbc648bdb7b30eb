package migrations_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// A migration that waits says for which process, and continues when that ends. It waits for another migrator no longer
// than stated, and then says which process that is.
func TestWaitsAreReported(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Migrated(t)
	d, holder := newDatabase(t, dsn), newDatabase(t, dsn)
	process := fmt.Sprintf(", which the process %d of user ", holder.PgConn().PID())
	begin := func(conn *pgx.Conn, statement string, args ...any) (end func()) {
		tx, err := conn.Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), statement, args...)
		}
		if err != nil {
			t.Fatal(err)
		}
		return func() { _ = tx.Rollback(context.Background()) }
	}
	lock := func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "lock table outbox.outbox_events")
		return err
	}
	if _, err := d.Exec(t.Context(), `create table public.theirs ()`); err != nil {
		t.Fatal(err)
	}
	lockTheirs := func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "lock table public.theirs in exclusive mode")
		return migrations.OnTable("public.theirs", false, err)
	}
	for what, test := range map[string]struct {
		statement string
		args      []any
		lock      func(pgx.Tx) error
		want      string
	}{
		"a table":  {"select from outbox.outbox_events", nil, lock, "waiting for a lock on a table of schema outbox" + process},
		"migrator": {"select pg_advisory_xact_lock(" + migrations.Migrators + ")", []any{"outbox"}, lock, "waiting for another migrator of schema outbox" + process},
		"theirs":   {"lock table public.theirs in row exclusive mode", nil, lockTheirs, "waiting for a lock on table public.theirs" + process},
	} {
		done := func() {}
		if what == "theirs" { // an older transaction that is not in the way
			done = begin(newDatabase(t, dsn).Conn, "select from public.theirs, outbox.outbox_events")
		}
		end := begin(holder.Conn, test.statement, test.args...)
		var said []string
		ctx := migrations.ReportWaits(t.Context(), func(sentence string) {
			said = append(said, sentence)
			end()
		})
		if err := migrations.TransactSoon(ctx, d.Conn, time.Hour, test.lock); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if len(said) == 0 || !strings.HasPrefix(said[0], test.want) || !strings.Contains(said[0], " since 2") {
			t.Errorf("%s: it reports %q, want %q and since when", what, said, test.want)
		}
		done()
	}
	defer begin(holder.Conn, "select pg_advisory_xact_lock("+migrations.Migrators+")", "outbox")()
	if err := migrations.TransactSoon(t.Context(), d.Conn, 50*time.Millisecond, lock); err == nil || !strings.Contains(err.Error(), process) {
		t.Errorf("got %v, want an error that names%s", err, process)
	}
}

// The producers' page makes the schema for tests by psql. Producers can use it, and a migration of it says what to do.
func TestSchemaForTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../dispatcher/producer/README.md")
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile("(?s)<!-- schema for tests -->\n```sh\n(.*?)\n```").FindSubmatch(page)
	if command == nil {
		t.Fatal("the page has no commands for the schema")
	}
	file := t.TempDir() + "/outbox.sql"
	sh := exec.Command("sh", "-euc", strings.ReplaceAll(string(command[1]), "> outbox.sql", "> "+file))
	sh.Dir = ".."
	if out, err := sh.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dsn := pgtest.Empty(t)
	made := newDatabase(t, dsn)
	if _, err := made.PgConn().Exec(t.Context(), string(text)).ReadAll(); err != nil {
		t.Fatal(err)
	}
	d := newDatabase(t, dsn)
	if _, err := d.Exec(t.Context(), `select outbox.enqueue('shop', 'orders', '{}')`); err != nil {
		t.Error(err)
	}
	const want = "the schema was made without a record of its migrations, as by psql; drop it (drop schema \"outbox\" cascade)"
	if _, err := migrations.Up(t.Context(), d.Conn, "outbox"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an error with %q", err, want)
	}
}
