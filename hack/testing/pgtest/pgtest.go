// Package pgtest gives each test a PostgreSQL database of its own, on one server per test process.
// Tests may run in parallel, and so may test processes that share a server.
package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/hack/servers/pgbouncer"
	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// DSNVariable names the environment variable with the connection string (a URL, of a superuser)
// of a server to use. Without it, the first test starts a server for this process.
const DSNVariable = "OUTBOX_TEST_DSN"

// Schema is where [Migrated] puts the outbox.
const Schema = "outbox"

// Settings are added to the settings of the server that is started. A package sets them before [Main].
var Settings map[string]string

// Main runs a package's tests and stops the server that they used: func TestMain(m *testing.M)
// { pgtest.Main(m) }. Where PGCONNECT_TIMEOUT is not set, connections of the tests and of what they start get a minute.
func Main(m interface{ Run() int }) {
	if os.Getenv("PGCONNECT_TIMEOUT") == "" {
		_ = os.Setenv("PGCONNECT_TIMEOUT", "60")
	}
	code := m.Run()
	if err := theServer.close(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// Empty makes an empty database, dropped at cleanup, and returns its connection string.
func Empty(t testing.TB) string {
	t.Helper()
	return theServer.create(t, "template1")
}

// Migrated makes a database with the latest outbox in schema [Schema], dropped at cleanup, and
// returns its connection string. It is a copy of a database that is migrated once per process.
func Migrated(t testing.TB) string {
	t.Helper()
	return theServer.create(t, theServer.template(t))
}

// Eventually waits until the condition holds, which it evaluates each 10 ms. It fails the test after [need.Wait].
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(need.Wait)
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", need.Wait, what)
		}
	}
}

// Pool connects to a database, and disconnects at cleanup.
func Pool(t testing.TB, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatalf("pgtest: connect: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// HandIn flushes the statistics of a pool of one session. Before PostgreSQL 15 a session flushes them twice a second at
// most, and other sessions see them as late.
func HandIn(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	var version int
	err := pool.QueryRow(t.Context(), `select current_setting('server_version_num')::integer`).Scan(&version)
	statements := []string{`select pg_stat_force_next_flush()`}
	if version < 15_0000 {
		statements = []string{`select pg_sleep(0.6)`, `select pg_sleep(0.6)`}
	}
	for i := 0; err == nil && i < len(statements); i++ {
		_, err = pool.Exec(t.Context(), statements[i])
	}
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}

// Server starts a server for this test alone, which the test may stop, kill and restart. It ends
// at cleanup.
func Server(t testing.TB) *postgres.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), need.Install)
	defer cancel()
	srv, err := postgres.Start(ctx, postgres.Options{})
	return own(t, srv, err)
}

// Standby starts a hot standby that streams from a server, for this test alone.
func Standby(t testing.TB, primary *postgres.Server) *postgres.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), need.Install)
	defer cancel()
	srv, err := primary.Standby(ctx, postgres.Options{})
	return own(t, srv, err)
}

// own stops a server of the test at cleanup.
func own(t testing.TB, srv *postgres.Server, err error) *postgres.Server {
	t.Helper()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		if err := srv.Stop(context.Background()); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return srv
}

// Bouncer starts a PgBouncer in transaction mode in front of a server, for this test alone. Where none
// can be had, the test is skipped, or fails in CI.
func Bouncer(t testing.TB, srv *postgres.Server) *pgbouncer.Bouncer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), need.Install)
	defer cancel()
	b, err := pgbouncer.Start(ctx, pgbouncer.Options{Server: srv})
	need.Server(t, err, pgbouncer.ErrMissing)
	t.Cleanup(func() {
		if err := b.Stop(context.Background()); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return b
}

// server is the one server of this process. Its fields are set by the first test that needs them.
type server struct {
	open         sync.Once
	openErr      error
	own          *postgres.Server // nil when the environment names the server
	admin        *pgxpool.Pool
	dsn          *url.URL
	migrate      sync.Once
	migrateErr   error
	templateName string
}

var theServer server

// connect starts the server, or connects to the one that the environment names.
func (s *server) connect(t testing.TB) {
	t.Helper()
	s.open.Do(func() {
		s.openErr = func() (err error) {
			ctx, cancel := context.WithTimeout(context.Background(), need.Install)
			defer cancel()
			dsn := os.Getenv(DSNVariable)
			if dsn == "" {
				if s.own, err = postgres.Start(ctx, postgres.Options{Settings: Settings}); err != nil {
					return err
				}
				dsn = s.own.DSN("postgres")
			}
			if s.dsn, err = url.Parse(dsn); err != nil || s.dsn.Host == "" {
				return fmt.Errorf("%s is not a URL; give it as postgres://user:password@host:port/database", DSNVariable)
			}
			s.admin, err = pgxpool.New(ctx, dsn)
			return err
		}()
	})
	if s.openErr != nil {
		t.Fatalf("pgtest: %v", s.openErr)
	}
}

// create copies a database under a new name.
func (s *server) create(t testing.TB, template string) string {
	t.Helper()
	s.connect(t)
	name := newName("test")
	if err := s.createDatabase(t.Context(), name, template); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		if err := s.drop(name); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return s.dsnOf(name)
}

// template returns the migrated database that tests copy.
func (s *server) template(t testing.TB) string {
	t.Helper()
	s.connect(t)
	s.migrate.Do(func() {
		s.migrateErr = func() error {
			ctx := context.Background()
			s.templateName = newName("template")
			if err := s.createDatabase(ctx, s.templateName, "template1"); err != nil {
				return err
			}
			conn, err := pgx.Connect(ctx, s.dsnOf(s.templateName))
			if err != nil {
				return err
			}
			_, err = migrations.Up(ctx, conn, Schema)
			return errors.Join(err, conn.Close(ctx)) // a copy needs a source without connections
		}()
	})
	if s.migrateErr != nil {
		t.Fatalf("pgtest: migrate the template: %v", s.migrateErr)
	}
	return s.templateName
}

func (s *server) createDatabase(ctx context.Context, name, template string) error {
	_, err := s.admin.Exec(ctx, "CREATE DATABASE "+quote(name)+" TEMPLATE "+quote(template))
	return err
}

func (s *server) drop(name string) error {
	_, err := s.admin.Exec(context.Background(), "DROP DATABASE IF EXISTS "+quote(name)+" WITH (FORCE)")
	return err
}

func (s *server) dsnOf(database string) string {
	u := *s.dsn
	u.Path = "/" + database
	return u.String()
}

// close drops the template and stops the server, if it is ours.
func (s *server) close() error {
	var errs []error
	if s.templateName != "" && s.own == nil {
		errs = append(errs, s.drop(s.templateName))
	}
	if s.admin != nil {
		s.admin.Close()
	}
	if s.own != nil {
		errs = append(errs, s.own.Stop(context.Background()))
	}
	return errors.Join(errs...)
}

// newName makes a database name that no other process uses.
func newName(kind string) string { return "outbox_" + kind + "_" + strings.ToLower(rand.Text()) }

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
