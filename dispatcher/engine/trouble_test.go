package engine_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

const sessionsOfDispatcher = `from pg_stat_activity where application_name = 'outbox-dispatcher/orders'`

// Sessions that an administrator ends are opened again, as often as it takes. Nothing is lost.
func TestTerminatedSessions(t *testing.T) {
	const events, times = 1000, 5
	r := newRig(t)
	r.enqueue("orders", events)
	dispatchers := rig{t, dispatcherPool(t, r.Pool.Config().ConnString())}
	sink := &book{}
	again := make(chan struct{}, times)
	sink.respond = func(context.Context, *dispatcher.Event) error {
		if n, _ := sink.delivered(); n%(events/times) == events/times/2 {
			select {
			case again <- struct{}{}:
			default:
			}
		}
		return nil
	}
	d := dispatchers.start(dispatchers.store(), sink, dispatcher.Config{Lease: 2 * time.Second, BatchSize: 20, Concurrency: 1})
	for range times {
		receive(t, "some more are delivered", again)
		pgtest.Exec(r, `select pg_terminate_backend(pid) `+sessionsOfDispatcher+` and datname = current_database()`)
	}
	r.eventually("every row is delivered", func() bool { return r.delivered() == events })
	r.eventually("the engine notices that the database is there", func() bool { return d.Snapshot().Source.OK })
	if n, _ := sink.delivered(); n != events {
		t.Errorf("%d of %d events were delivered", n, events)
	}
}

// What the database refuses for a while is waited for, and the message says what to do.
// CONTRACT: C-101
func TestDatabaseTroubles(t *testing.T) {
	r, srv := ownServer(t)
	pgtest.Exec(r, `create role modest login password 'test' connection limit 1`)
	for _, sql := range migrations.Grants(pgtest.Schema, "modest", migrations.Dispatcher) {
		pgtest.Exec(r, sql)
	}
	dsn := srv.DSN("postgres")
	locked := func() (end func()) {
		tx, err := r.Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), `lock table outbox.outbox_events`)
		}
		if err != nil {
			t.Fatal(err)
		}
		return func() { _ = tx.Rollback(context.Background()) }
	}
	modest := change(dsn, "modest", "test")
	for _, trouble := range []struct {
		name, dsn string
		begin     func() (end func())
		want      string
	}{
		{"statement timeout", dsn + "&statement_timeout=100", locked, "canceling statement due to statement timeout; see what the statement waits for"},
		{"lock timeout", dsn + "&lock_timeout=100", locked, "canceling statement due to lock timeout; let the transaction end that locks the outbox's tables"},
		{"too many connections", modest, func() func() {
			conn, err := pgx.Connect(t.Context(), modest)
			if err != nil {
				t.Fatal(err)
			}
			return func() { _ = conn.Close(context.Background()) }
		}, `too many connections for role "modest"; raise the server's max_connections or the login's connection limit`},
		{"no login for a while", modest, func() func() {
			pgtest.Exec(r, `alter role modest nologin`)
			return func() { pgtest.Exec(r, `alter role modest login`) }
		}, `role "modest" is not permitted to log in; correct the user`},
	} {
		t.Run(trouble.name, func(t *testing.T) {
			own := rig{t, dispatcherPool(t, trouble.dsn)}
			before := r.delivered()
			r.enqueue("orders", 10)
			end := trouble.begin()
			d := own.start(own.store(), &book{}, dispatcher.Config{})
			own.awaitUnreachable(d, trouble.want)
			end()
			own.eventually("every row is delivered", func() bool { return r.delivered() == before+10 })
			own.eventually("the engine notices that the database is there", func() bool { return d.Snapshot().Source.OK })
			d.stop()
			own.Close()
			own.eventually("its sessions end", func() bool { return pgtest.Value[int](r, `select count(*) `+sessionsOfDispatcher) == 0 })
		})
	}
}

// change puts another user into a connection string.
func change(dsn, user, password string) string {
	_, rest, _ := strings.Cut(dsn, "@")
	return "postgres://" + user + ":" + password + "@" + rest
}

// A server that shuts down, or starts up, refuses connections with a message of its own.
func TestDatabaseShutsDown(t *testing.T) {
	r, srv := ownServer(t)
	r.enqueue("orders", 10)
	own := rig{t, dispatcherPool(t, srv.DSN("postgres"))}
	d := own.start(own.store(), &book{}, dispatcher.Config{})
	r.eventually("every row is delivered", func() bool { return r.delivered() == 10 })
	if err := syscall.Kill(r.postmaster(), syscall.SIGTERM); err != nil { // it waits for its sessions to end
		t.Fatal(err)
	}
	r.eventually("the engine's sessions are gone, also one that was just made", func() bool {
		pgtest.Exec(r, `select pg_terminate_backend(pid) `+sessionsOfDispatcher)
		return !d.Snapshot().Source.OK
	})
	own.awaitUnreachable(d, "the database system is shutting down; wait until the server is ready")
	r.Reset()
	if err := srv.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.eventually("the engine notices that the database is there", func() bool { return d.Snapshot().Source.OK })
	r.enqueue("orders", 10)
	r.eventually("the new rows are delivered", func() bool { return r.delivered() == 20 })
}

// postmaster is the process id of the server.
func (r rig) postmaster() int {
	r.Helper()
	text, err := os.ReadFile(filepath.Join(pgtest.Value[string](r, `show data_directory`), "postmaster.pid"))
	if err != nil {
		r.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		r.Fatal(err)
	}
	return pid
}
