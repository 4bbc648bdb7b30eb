package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// holders is an outbox on a server of its own, where only the test has transactions.
type holders struct {
	outbox
	srv    *postgres.Server
	store  *pgstore.Store // with a dispatcher's rights
	seeing *pgstore.Store // of a member of pg_read_all_stats
	own    *[]*pgx.Conn   // sessions of the dispatcher itself, each with a transaction
}

func newHolders(t *testing.T) holders {
	t.Helper()
	t.Parallel()
	srv, err := postgres.Start(t.Context(), postgres.Options{Settings: map[string]string{"max_prepared_transactions": "5", "autovacuum": "off"}})
	need.OK(t, err)
	t.Cleanup(func() {
		need.Want(t, nil, "%v", srv.Stop(context.Background()))
	})
	conn, err := pgx.Connect(t.Context(), srv.DSN("postgres"))
	need.OK(t, err)
	defer conn.Close(t.Context())
	need.OK(t, need.Err(migrations.Up(t.Context(), conn, pgtest.Schema)))
	h := holders{outbox: newOutbox(t, srv.DSN("postgres")), srv: srv, own: new([]*pgx.Conn)}
	h.store = h.as(h.login(migrations.Dispatcher))
	seeing := h.login(migrations.Dispatcher)
	pgtest.Exec(h, `grant pg_read_all_stats to `+user(t, seeing))
	h.seeing = h.as(seeing)
	pgtest.Exec(h, `checkpoint`)
	return h
}

func user(t *testing.T, dsn string) string {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	need.OK(t, err)
	return config.User
}

// as returns the store of a dispatcher with two sessions, one of which has a transaction that must not
// be reported.
func (h holders) as(dsn string) *pgstore.Store {
	h.Helper()
	dsn += "&application_name=outbox-dispatcher/orders"
	pool := pgtest.Pool(h.T, dsn)
	own, err := pgx.Connect(h.Context(), dsn)
	need.OK(h, err)
	h.Cleanup(func() { _ = own.Close(context.Background()) })
	h.run(own, begin)
	*h.own = append(*h.own, own)
	return pgstore.New(pool, pgstore.Options{Schema: pgtest.Schema, Namespace: "shop", Worker: uuid.New()})
}

const begin = `begin isolation level repeatable read; select 1`

// session opens a session of the superuser.
func (h holders) session(name string) *pgx.Conn {
	h.Helper()
	conn, err := pgx.Connect(h.Context(), h.srv.DSN("postgres")+"&application_name="+name)
	need.OK(h, err)
	h.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (h holders) run(conn *pgx.Conn, sql string) {
	h.Helper()
	if _, err := conn.Exec(h.Context(), sql); err != nil {
		h.Fatalf("%s: %v", sql, err)
	}
}

// renew makes the dispatcher's own transactions short ones.
func (h holders) renew() {
	h.Helper()
	for _, own := range *h.own {
		h.run(own, `rollback; `+begin)
	}
}

// wants checks what a store reports; no kind means nothing. It returns the report.
func (h holders) wants(store *pgstore.Store, kind dispatcher.HolderKind, name string) dispatcher.OldestTransaction {
	h.Helper()
	h.renew()
	got, err := store.OldestTransaction(h.Context())
	need.OK(h, err)
	if got == nil {
		got = &dispatcher.OldestTransaction{}
	}
	if got.Kind != kind || got.Name != name {
		h.Errorf("reported %s %q, want %s %q", got.Kind, got.Name, kind, name)
	}
	return *got
}

// What a session holds is reported, to a member of pg_read_all_stats since it began, and by others since
// they first saw it. Nothing else is reported.
func TestOldestTransactionOfSessionsIsReported(t *testing.T) {
	h := newHolders(t)
	pgtest.Exec(h, `create database elsewhere`)
	elsewhere, err := pgx.Connect(t.Context(), h.srv.DSN("elsewhere"))
	need.OK(t, err)
	defer elsewhere.Close(context.Background())
	h.run(elsewhere, `begin isolation level repeatable read; select 1`)
	for _, store := range []*pgstore.Store{h.store, h.seeing} {
		h.wants(store, "", "")
	}

	idle := h.session("idle")
	h.run(idle, `begin; select 1`) // its snapshot ended with the statement: it holds nothing
	for _, store := range []*pgstore.Store{h.store, h.seeing} {
		h.wants(store, "", "")
	}
	h.run(idle, `rollback`)

	analyst, late := h.session("analyst"), h.session("")
	name := fmt.Sprintf("pid %d (analyst)", analyst.PgConn().PID())
	h.run(analyst, `begin isolation level repeatable read; select 1`)
	began := pgtest.Value[time.Time](h.outbox, `select xact_start from pg_stat_activity where application_name = 'analyst'`)
	first := h.wants(h.store, dispatcher.HeldBySession, name)
	h.run(late, `begin; create table late ()`)
	got := h.wants(h.seeing, dispatcher.HeldBySession, name)
	need.That(t, got.Since.Equal(began) && got.Age > 0, "it began at %v, and was reported as %+v", began, got)
	got = h.wants(h.store, dispatcher.HeldBySession, name)
	need.That(t, got.Since.Equal(first.Since) && !got.Since.Before(began) && got.Age > first.Age, "first reported as %+v, then as %+v", first, got)
	h.run(analyst, `commit`)
	for _, store := range []*pgstore.Store{h.store, h.seeing} {
		h.wants(store, dispatcher.HeldBySession, fmt.Sprintf("pid %d", late.PgConn().PID())) // has no name, and a transaction id
	}
	h.run(late, `commit`)
	h.run(analyst, `begin isolation level repeatable read; select 1`) // the same session, another transaction
	got = h.wants(h.store, dispatcher.HeldBySession, name)
	need.That(t, got.Since.After(first.Since), "another transaction is reported since %v, the first one since %v", got.Since, first.Since)
}

// A transaction of the dispatcher itself is reported when it is longer than any that ends by itself: its process
// is frozen.
func TestOldestTransactionOfAFrozenDispatcherIsReported(t *testing.T) {
	h := newHolders(t)
	frozen := (*h.own)[0]
	name := fmt.Sprintf("pid %d (outbox-dispatcher/orders)", frozen.PgConn().PID())
	h.wants(h.seeing, "", "")
	*h.own = nil
	h.eventually("the frozen session is reported", func() bool { return h.reports(h.seeing, dispatcher.HeldBySession, name) })
	for _, store := range []*pgstore.Store{h.store, h.seeing} { // of its own role everybody sees it
		got, err := store.OldestTransaction(t.Context())
		need.That(t, err == nil && got != nil && got.Name == name && got.Age >= 10*time.Second, "reported %+v, %v, want %s of at least 10 s", got, err, name)
	}
}

// Prepared transactions, slots and standbys are reported to every login.
func TestOldestTransactionElsewhereIsReported(t *testing.T) {
	h := newHolders(t)
	preparer := h.session("preparer")
	h.run(preparer, `begin; create table later (); prepare transaction 'two-phase'`)
	for _, store := range []*pgstore.Store{h.store, h.seeing} {
		h.wants(store, dispatcher.HeldByPrepared, "two-phase")
	}
	h.run(preparer, `rollback prepared 'two-phase'`)

	pgtest.Exec(h, `select pg_create_physical_replication_slot('kept')`)
	h.wants(h.store, "", "") // it holds WAL, and no rows
	feedback := map[string]string{"hot_standby_feedback": "on", "wal_receiver_status_interval": "1s", "cluster_name": "replica", "primary_slot_name": "kept"}
	slotted := h.standby(feedback)
	delete(feedback, "primary_slot_name")
	for _, store := range []*pgstore.Store{h.store, h.seeing} {
		h.eventually("the slot is reported", func() bool { return h.reports(store, dispatcher.HeldBySlot, "kept") })
	}
	slotted.Kill()
	first := h.wants(h.store, dispatcher.HeldBySlot, "kept") // also when no client uses it
	got := h.wants(h.store, dispatcher.HeldBySlot, "kept")
	need.That(t, got.Since.Equal(first.Since) && got.Age > first.Age, "first reported as %+v, then as %+v", first, got)
	h.eventually("the slot is given up", func() bool {
		_, err := h.Exec(h.Context(), `select pg_drop_replication_slot('kept')`)
		return err == nil
	})
	h.wants(h.store, "", "")

	h.standby(feedback)
	for _, store := range []*pgstore.Store{h.store, h.seeing} {
		h.eventually("the standby is reported", func() bool { return h.reports(store, dispatcher.HeldByStandby, "replica") })
	}
}

func (h holders) reports(store *pgstore.Store, kind dispatcher.HolderKind, name string) bool {
	h.Helper()
	h.renew()
	got, err := store.OldestTransaction(context.Background())
	return err == nil && got != nil && got.Kind == kind && got.Name == name
}

func (h holders) standby(settings map[string]string) *postgres.Server {
	h.Helper()
	srv, err := h.srv.Standby(h.Context(), postgres.Options{Settings: settings})
	need.OK(h, err)
	h.Cleanup(func() {
		if err := srv.Stop(context.Background()); err != nil {
			h.Error(err)
		}
	})
	return srv
}

func (o outbox) eventually(what string, holds func() bool) {
	o.Helper()
	pgtest.Eventually(o, what, holds)
}

// A long vacuum looks like a session with an old snapshot, and holds nothing back.
func TestOldestTransactionIgnoresVacuum(t *testing.T) {
	h := newHolders(t)
	pgtest.Exec(h, `create table wide as select repeat('x', 1000) from generate_series(1, 200)`)
	vacuum := h.session("vacuum")
	h.run(vacuum, `set vacuum_cost_delay = 100; set vacuum_cost_limit = 1`)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := vacuum.Exec(ctx, `vacuum wide`)
		done <- err
	}()
	h.eventually("the vacuum runs", func() bool {
		return pgtest.Value[bool](h.outbox, `select exists (select from pg_stat_progress_vacuum join pg_stat_activity using (pid) where backend_xmin is not null)`)
	})
	h.wants(h.seeing, "", "")
	h.wants(h.store, "", "")
	cancel()
	need.Fails(t, "canceled", "the vacuum ended before it was looked at: %v", <-done)
}

// Workers whose login runs at REPEATABLE READ by default meet no error, though their transactions fail with
// serialization errors again and again, and each event is claimed once. It is the situation behind a
// connection pooler; where there is none, package database sets the level.
// CONTRACT: C-20
func TestRepeatableReadLoginMeetsNoError(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string]*dispatcher.KeyOrder{"None": nil, "Key": {PerKey: 5}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, pgtest.Migrated(t))
			dsn := o.login(migrations.Dispatcher)
			config, err := pgxpool.ParseConfig(dsn)
			check(t, "parse", err)
			pgtest.Exec(o, `alter role `+config.ConnConfig.User+` set default_transaction_isolation = 'repeatable read'`)
			var lost serializationErrors
			config.ConnConfig.Tracer = &lost
			config.MaxConns = 6
			o.stores, err = pgxpool.NewWithConfig(t.Context(), config)
			check(t, "connect", err)
			t.Cleanup(o.stores.Close)
			o.eventually("transactions fail, and are tried again", func() bool {
				drain(t, o, keys)
				return lost.n.Load() > 0
			})
			t.Logf("%d transactions were tried again", lost.n.Load())
		})
	}
}

// drain has several workers deliver events, and checks that each is claimed once and no call fails.
func drain(t *testing.T, o outbox, keys *dispatcher.KeyOrder) {
	t.Helper()
	const rows = 2000
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload)
		select gen_random_uuid(), 'shop', 'orders', (n % 500)::text, '{}' from generate_series(1, $1::integer) as n`, rows)
	var group errgroup.Group
	var delivered atomic.Int64
	for range 6 {
		store := o.Store("shop", uuid.New())
		group.Go(func() error {
			for delivered.Load() < rows {
				claimed, err := store.Claim(t.Context(), dispatcher.ClaimRequest{
					Shares: []dispatcher.Share{{Topic: "orders", Limit: 20}}, Lease: time.Minute, MaxAttempts: 1, Keys: keys,
				})
				if err != nil {
					return err
				}
				lost, err := store.Ack(t.Context(), leasesOf(claimed.Events))
				if err != nil || len(lost) > 0 || len(claimed.Dead) > 0 {
					return fmt.Errorf("lost %v, dead %v: %w", lost, claimed.Dead, err)
				}
				delivered.Add(int64(len(claimed.Events)))
			}
			return nil
		})
	}
	need.OK(t, group.Wait())
	n := delivered.Load()
	need.Must(t, n == rows, "%d events were delivered, want %d", n, rows)
}

// serializationErrors counts the statements of batches that fail with one.
type serializationErrors struct {
	trips
	n atomic.Int64
}

func (c *serializationErrors) TraceBatchQuery(_ context.Context, _ *pgx.Conn, q pgx.TraceBatchQueryData) {
	var pg *pgconn.PgError
	if errors.As(q.Err, &pg) && pg.Code == "40001" {
		c.n.Add(1)
	}
}

// A transaction that is always refused for others' sake is tried three times, and is not a refusal of its rows.
func TestLostTransactionIsTriedThreeTimes(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fill(1, "orders")
	store := o.Store("shop", uuid.New())
	claimed, err := store.Claim(t.Context(), share("orders", 1))
	check(t, "Claim", err)
	pgtest.Exec(o, `create sequence fires`)
	pgtest.Exec(o, `create function lose() returns trigger language plpgsql as $$
		begin perform nextval('fires'); raise exception 'lost to another transaction' using errcode = '40P01'; end $$`)
	pgtest.Exec(o, `create trigger lose before update on outbox.outbox_events for each row execute function lose()`)
	_, err = store.Ack(t.Context(), leasesOf(claimed.Events))
	n := pgtest.Value[int](o, `select last_value from fires`)
	need.That(t, n == 3 && err != nil && !dispatcher.IsRefused(err), "it was tried %d times, and then: %v", n, err)
}
