package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// ownServer is an outbox on a server that the test may stop.
func ownServer(t *testing.T) (rig, *postgres.Server) {
	t.Helper()
	t.Parallel()
	srv := pgtest.Server(t)
	migrate(t, srv.DSN("postgres"))
	return rig{t, pgtest.Pool(t, srv.DSN("postgres"))}, srv
}

func migrate(t *testing.T, dsn string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := migrations.Up(t.Context(), conn, pgtest.Schema); err != nil {
		t.Fatal(err)
	}
}

// A database that is shut down and started in the middle of the work is waited for. What was
// delivered meanwhile is written once it has recovered, before anything is claimed again: nothing is
// delivered twice.
//
// CONTRACT: C-23 C-30
func TestDatabaseRestart(t *testing.T) {
	const events = 600
	r, srv := ownServer(t)
	r.enqueue("orders", events)
	held, release := make(chan struct{}, 1), make(chan struct{})
	sink, log := &book{}, &logBook{}
	sink.respond = func(context.Context, *dispatcher.Event) error {
		if n, _ := sink.delivered(); n >= events/3 {
			select {
			case held <- struct{}{}:
			default:
			}
			<-release
		}
		return nil
	}
	d := r.start(r.store(), sink, dispatcher.Config{Lease: 3 * time.Second, BatchSize: 50, Concurrency: 8, Logger: log.logger()})
	receive(t, "a third is delivered", held)
	restarted := make(chan error, 1)
	go func() { restarted <- srv.Restart(t.Context()) }()
	r.eventually("the database is unreachable", func() bool { return r.Ping(t.Context()) != nil })
	close(release)
	if err := receive(t, "the database has recovered", restarted); err != nil {
		t.Fatal(err)
	}
	r.eventually("every row is delivered", func() bool { return r.delivered() == events })
	r.eventually("the engine notices that the database has recovered", func() bool { return d.Snapshot().Source.OK })
	if n, times := sink.delivered(); n != events || times != events {
		t.Errorf("%d events were delivered %d times, want %d once each", n, times, events)
	}
	if down := len(log.lines("the database is unreachable")); down > 2 {
		t.Errorf("the log says %d times that the database is unreachable, want once", down)
	}
}

// A database that crashes may forget its last commits. Everything is delivered nevertheless.
func TestDatabaseCrash(t *testing.T) {
	const events = 600
	r, srv := ownServer(t)
	r.enqueue("orders", events)
	pgtest.Exec(r, "checkpoint")
	sink, third := &book{}, make(chan struct{}, 1)
	sink.respond = func(context.Context, *dispatcher.Event) error {
		if n, _ := sink.delivered(); n == events/3 {
			select {
			case third <- struct{}{}:
			default:
			}
		}
		return nil
	}
	d := r.start(r.store(), sink, dispatcher.Config{Lease: time.Second, BatchSize: 20, Concurrency: 1})
	receive(t, "a third is delivered", third)
	srv.Kill()
	r.eventually("the engine notices that the database is unreachable", func() bool { return !d.Snapshot().Source.OK })
	if err := srv.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.eventually("every row is delivered", func() bool { return r.delivered() == events })
	if n, _ := sink.delivered(); n != events {
		t.Errorf("%d of %d events were delivered", n, events)
	}
}

// delivered counts the delivered rows, or returns -1 while the database is unreachable.
func (r rig) delivered() (n int) {
	if r.Pool.QueryRow(r.Context(), `select count(*) from outbox.outbox_events where status = 'delivered'`).Scan(&n) != nil {
		return -1
	}
	return n
}

// Before the first claim the schema is compared, again and again until it is there.
func TestSchemaIsWaitedFor(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Empty(t)
	r := rig{t, pgtest.Pool(t, dsn)}
	d := r.start(r.store(), &book{}, dispatcher.Config{})
	r.eventually("the engine sees that there is no schema", func() bool {
		s := d.Snapshot()
		return s.Schema.State == dispatcher.SchemaMissing && s.Schema.Message != "" && s.Source.OK
	})
	if _, err := r.once(&book{}, dispatcher.Config{}, 1); err == nil {
		t.Error("RunOnce says nothing of the missing schema")
	}
	migrate(t, dsn)
	r.enqueue("orders", 10)
	r.eventually("the events are delivered", func() bool { return r.count("status = 'delivered'") == 10 })
	if s := d.Snapshot(); s.Schema.State != dispatcher.SchemaReady {
		t.Errorf("the snapshot says of the schema %+v", s.Schema)
	}
}

// A database that was never there does not end Run either.
func TestDatabaseMayComeLater(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, "postgres://missing@127.0.0.1:1/nothing?connect_timeout=1")
	r := rig{t, pool}
	store := pgstore.New(pool, pgstore.Options{Namespace: "shop", Worker: uuid.New()})
	d := r.start(store, &book{}, dispatcher.Config{GracePeriod: time.Second})
	r.eventually("the engine notices that the database is unreachable", func() bool { s := d.Snapshot().Source; return s.Known && !s.OK })
	if _, err := r.once(&book{}, dispatcher.Config{}, 1); err == nil {
		t.Error("RunOnce says nothing of the missing database")
	}
	d.stop()
}
