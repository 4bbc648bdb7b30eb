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
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// Workers whose login runs at REPEATABLE READ by default meet no error, though their transactions fail with
// serialization errors again and again, and each event is claimed once. It is the situation behind a
// connection pooler; where there is none, package database sets the level.
// CONTRACT: C-20
func TestRepeatableReadLogin(t *testing.T) {
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
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if n := delivered.Load(); n != rows {
		t.Fatalf("%d events were delivered, want %d", n, rows)
	}
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
	if n := pgtest.Value[int](o, `select last_value from fires`); n != 3 || err == nil || dispatcher.IsRefused(err) {
		t.Errorf("it was tried %d times, and then: %v", n, err)
	}
}
