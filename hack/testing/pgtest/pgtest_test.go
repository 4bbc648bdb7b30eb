package pgtest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Each test has a database to itself, at the same time as others.
func TestMigratedDatabaseIsOfOneTest(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"one", "two", "three"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, pgtest.Migrated(t))
			var events int
			_, err := pool.Exec(t.Context(), `select outbox.enqueue('shop', 'orders', '{}')`)
			if err == nil {
				err = pool.QueryRow(t.Context(), `select count(*) from outbox.outbox_events`).Scan(&events)
			}
			need.That(t, err == nil && events == 1, "%d events, %v, want the test's own alone", events, err)
		})
	}
}

func TestEmptyDatabaseHasNoOutbox(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Empty(t))
	var outbox bool
	if err := pool.QueryRow(t.Context(), `select to_regnamespace('outbox') is not null`).Scan(&outbox); err != nil || outbox {
		t.Errorf("an empty database has an outbox: %t, %v", outbox, err)
	}
}

// Processes that share a server do not get in each other's way, and leave nothing there.
func TestProcessesShareAServer(t *testing.T) {
	t.Parallel()
	if os.Getenv(pgtest.DSNVariable) != "" {
		t.Skip("this process shares a server itself")
	}
	dsn := pgtest.Server(t).DSN("postgres")
	var group errgroup.Group
	for range 3 {
		group.Go(func() error {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^(TestMigratedDatabaseIsOfOneTest|TestEmptyDatabaseHasNoOutbox)$", "-test.v")
			cmd.Env = append(os.Environ(), pgtest.DSNVariable+"="+dsn)
			out, err := cmd.CombinedOutput()
			need.That(t, err == nil && !strings.Contains(string(out), "no tests to run"), "%v: %s", err, out)
			return nil
		})
	}
	_ = group.Wait() // the goroutines report themselves
	var databases []string
	pool := pgtest.Pool(t, dsn)
	need.OK(t, pool.QueryRow(t.Context(), `select array_agg(datname order by datname) from pg_database`).Scan(&databases))
	need.Want(t, "postgres template0 template1", "the server has the databases %s", strings.Join(databases, " "))
}
