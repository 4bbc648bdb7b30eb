package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/storetest"
	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// A clean stop lets deliveries end, gives back what was queued with its attempt, and leaves no lease.
//
// CONTRACT: C-30
func TestCleanStopLeavesNoLease(t *testing.T) {
	const events, running = 60, 4
	r := newRig(t)
	r.enqueue("orders", events)
	begun, end := make(chan struct{}, events), make(chan struct{})
	sink := &book{respond: func(ctx context.Context, _ *dispatcher.Event) error {
		begun <- struct{}{}
		<-end
		return ctx.Err() // none: the grace period is not over
	}}
	d := r.start(r.store(), sink, dispatcher.Config{Concurrency: running, BatchSize: events})
	for range running {
		receive(t, "the deliveries begin", begun)
	}
	if n := r.count("status = 'processing'"); n != events {
		t.Fatalf("%d of %d rows were claimed", n, events)
	}
	d.cancel()
	r.eventually("the queued rows are given back while deliveries still run", func() bool {
		return r.count("status = 'pending' and attempts = 0 and locked_by is null and next_attempt_at <= now()") == events-running
	})
	need.That(t, d.Snapshot().Draining, "the snapshot does not say that the dispatcher drains")
	close(end)
	d.stop()
	need.Want(t, running, "%d of the %d deliveries that were under way are written back", r.count("status = 'delivered' and attempts = 1"))
	need.Want(t, 0, "%d rows wait for their lease to expire after a clean stop", r.count("status = 'processing'"))
	// The next worker begins at once, at the first attempt.
	next := &book{}
	r.start(r.store(), next, dispatcher.Config{Lease: time.Hour})
	r.eventually("the next worker delivers the rest", func() bool { return r.count("status = 'delivered' and attempts = 1") == events })
}

// A delivery that outlasts the grace period is cut. It may have arrived, so its attempt is spent:
// the same fencing token is never published twice.
//
// CONTRACT: C-27 C-30
func TestGracePeriodCutsDeliveries(t *testing.T) {
	for _, test := range []struct {
		name string
		hang func(context.Context)
	}{
		{"that notice", func(ctx context.Context) { <-ctx.Done() }},
		{"that do not return", func(context.Context) { select {} }},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t)
			r.enqueue("orders", 10)
			begun := make(chan struct{}, 10)
			sink := &book{respond: func(ctx context.Context, _ *dispatcher.Event) error {
				begun <- struct{}{}
				test.hang(ctx)
				return ctx.Err()
			}}
			log := &logBook{}
			d := r.start(r.store(), sink, dispatcher.Config{
				Concurrency: 2, GracePeriod: 50 * time.Millisecond, Logger: log.logger(), Backoff: dispatcher.PowerOfTwoBackoff(),
			})
			receive(t, "the first delivery begins", begun)
			receive(t, "the second delivery begins", begun)
			d.stop()
			need.Want(t, 2, "%d of the 2 rows that were cut wait for their second attempt, and say why", r.count(`status = 'pending' and attempts = 1 and next_attempt_at > now() and last_error like '%grace period%'`))
			need.Want(t, 8, "%d of the 8 rows that were not begun are given back", r.count("status = 'pending' and attempts = 0"))
			pgtest.Exec(r, "update outbox.outbox_events set next_attempt_at = now()")
			next := &book{}
			r.start(r.store(), next, dispatcher.Config{})
			r.eventually("the next worker delivers all", func() bool { return r.count("status = 'delivered'") == 10 })
			for id := range sink.begun() {
				need.WantAll(t, []int{2}, "event %s was published under 1 and then under %v, want 2", next.begun()[id], id)
			}
			lines := log.lines(`"level":"ERROR"`)
			need.That(t, len(lines) <= 1 && (len(lines) != 1 || strings.Contains(lines[0], "leaving them behind")), "the log has errors: %v", lines)
		})
	}
}

// A stop does not wait for ever for an unreachable database. What cannot be written is logged; the
// rows come back when their leases expire.
//
// CONTRACT: C-30
func TestStopEndsWhileTheDatabaseIsUnreachable(t *testing.T) {
	r := newRig(t)
	r.enqueue("orders", 3)
	var gone atomic.Bool
	log, done := &logBook{}, make(chan struct{}, 3)
	sink := &book{respond: func(context.Context, *dispatcher.Event) error {
		gone.Store(true)
		done <- struct{}{}
		return nil
	}}
	d := r.start(crashed(r.store(), &gone), sink, dispatcher.Config{Lease: time.Second, Logger: log.logger()})
	for range 3 {
		receive(t, "the deliveries end", done)
	}
	d.stop()
	lines := log.lines("stopped before every outcome")
	need.That(t, len(lines) == 1 && strings.Contains(lines[0], "3 outcomes are not written back: the process is gone"), "the log reports the lost outcomes: %v", lines)
	r.start(r.store(), &book{}, dispatcher.Config{})
	r.eventually("another worker delivers them again", func() bool { return r.count("status = 'delivered' and attempts = 1 and suspicion > 1") == 3 })
}

// An attempt is given back, the response is lost, and that is tried again. The same worker may have claimed
// the row meanwhile, as the same attempt: the second try must not hit that lease. A row whose destination is unreachable
// waits while others of its topic are delivered.
// CONTRACT: C-23, C-27
func TestReleaseTriedAgainTakesNoNewLease(t *testing.T) {
	for _, delivered := range []bool{true, false} {
		t.Run(fmt.Sprintf("others delivered %t", delivered), func(t *testing.T) {
			r := newRig(t)
			r.enqueue("orders", 1)
			good := uuid.New()
			if delivered {
				pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, payload) values ($1, 'shop', 'orders', '{}')`, good)
			}
			events := r.count("live")
			done, begun, finish := make(chan struct{}), make(chan struct{}), make(chan struct{})
			begin := sync.OnceFunc(func() { close(begun) })
			var releases atomic.Int64
			store := &storetest.Hooked{Store: r.store(), After: func(_ context.Context, c storetest.Call) error {
				if c.Verb != "release" || releases.Add(1) > 1 {
					return nil
				}
				close(done)
				select {
				case <-begun: // the row is claimed again
				case <-time.After(time.Second):
				}
				return errors.New("the response was lost")
			}}
			sink := &book{respond: func(_ context.Context, e *dispatcher.Event) error {
				if e.ID == good {
					return nil
				}
				select {
				case <-done:
				default:
					return errUnreachable
				}
				begin()
				<-finish
				return nil
			}}
			r.start(store, sink, dispatcher.Config{})
			receive(t, "the next delivery begins", begun)
			r.eventually("it is tried again", func() bool { return releases.Load() == 2 })
			need.Want(t, 1, "the second try took the row from the delivery that runs", r.count("status = 'processing' and attempts = 1"))
			close(finish)
			r.eventually("delivered", func() bool { return r.count("status = 'delivered' and attempts = 1") == events })
			sink.wantOnce(t, events)
		})
	}
}

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
	need.OK(t, err)
	defer conn.Close(t.Context())
	_, err = migrations.Up(t.Context(), conn, pgtest.Schema)
	need.OK(t, err)
}

// A database that is shut down and started in the middle of the work is waited for. What was
// delivered meanwhile is written once it has recovered, before anything is claimed again: nothing is
// delivered twice.
//
// CONTRACT: C-23 C-30
func TestDatabaseRestartDeliversNothingTwice(t *testing.T) {
	const events = 600
	r, srv := ownServer(t)
	r.enqueue("orders", events)
	sink, log := newGate(events/3), &logBook{}
	d := r.start(r.store(), sink, dispatcher.Config{Lease: 3 * time.Second, BatchSize: 50, Concurrency: 8, Logger: log.logger()})
	receive(t, "a third is delivered", sink.reached)
	restarted := make(chan error, 1)
	go func() { restarted <- srv.Restart(t.Context()) }()
	r.eventually("the database is unreachable", func() bool { return r.Ping(t.Context()) != nil })
	close(sink.open)
	need.OK(t, receive(t, "the database has recovered", restarted))
	r.eventually("every row is delivered", func() bool { return r.delivered() == events })
	r.eventually("the engine notices that the database has recovered", func() bool { return d.Snapshot().Source.OK })
	sink.wantOnce(t, events)
	down := len(log.lines("the database is unreachable"))
	need.That(t, down <= 2, "the log says %d times that the database is unreachable, want once", down)
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
	need.That(t, need.Err(r.once(&book{}, dispatcher.Config{}, 1)) != nil, "RunOnce says nothing of the missing schema")
	migrate(t, dsn)
	r.enqueue("orders", 10)
	r.eventually("the events are delivered", func() bool { return r.count("status = 'delivered'") == 10 })
	if s := d.Snapshot(); s.Schema.State != dispatcher.SchemaReady {
		t.Errorf("the snapshot says of the schema %+v", s.Schema)
	}
}
