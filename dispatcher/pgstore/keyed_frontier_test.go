package pgstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// hold keeps a snapshot of the database, as a long report does, until the test ends.
func (o outbox) hold() {
	o.Helper()
	tx, err := o.BeginTx(o.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err == nil {
		_, err = tx.Exec(o.Context(), `select from outbox.outbox_workers`)
	}
	if err != nil {
		o.Fatal(err)
	}
	o.Cleanup(func() { _ = tx.Rollback(o.Context()) }) //nolint:usetesting // its end is the test's
}

// fetched is how many buffers of the outbox were read so far. A backend reports what it read when it ends, so all do.
func (o outbox) fetched() int {
	o.Helper()
	o.stores.Reset()
	o.Reset()
	pgtest.Eventually(o, "one connection", time.Minute, func() bool {
		return pgtest.Value[int](o, `select count(*) from pg_stat_activity where datname = current_database() and state = 'idle'`) == 0
	})
	return pgtest.Value[int](o, `select sum(pg_stat_get_blocks_fetched(oid)) from pg_class
		where relnamespace = 'outbox'::regnamespace and relkind in ('r', 'i')`)
}

// keyedCost is how many buffers claims of a backlog read after so many deliveries of each of its keys: one of a row of each
// key, and one of a single row.
func (o outbox) keyedCost(keys, delivered int) (many, one float64) {
	o.Helper()
	const rounds, measured = 10, 5
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload, next_attempt_at)
		select gen_random_uuid(), 'shop', 'orders', 'key ' || n % $1, '{}', now() - interval '1 hour' + n * interval '1 ms'
		from generate_series(0, $1::integer * $2::integer - 1) as n`, keys, delivered+rounds+2)
	pgtest.Exec(o, `update outbox.outbox_events set status = 'delivered' where seq <= $1`, keys*delivered)
	store := o.Store("shop", uuid.New())
	round := func(limit int) (buffers float64) {
		req := dispatcher.ClaimRequest{
			Shares: []dispatcher.Share{{Topic: "orders", Limit: limit}}, Lease: time.Minute, MaxAttempts: 10, Keys: &dispatcher.KeyOrder{PerKey: 1},
		}
		before := o.fetched()
		claimed, err := store.Claim(o.Context(), req)
		if err != nil || len(claimed.Events) != limit {
			o.Fatalf("%d rows were claimed, %v, want %d", len(claimed.Events), err, limit)
		}
		buffers = float64(o.fetched() - before)
		pgstore.NoPass(store)
		if lost, err := store.Ack(o.Context(), leasesOf(claimed.Events)); err != nil || len(lost) > 0 {
			o.Fatalf("lost %v, %v", lost, err)
		}
		return buffers
	}
	for n := range rounds {
		if b := round(keys); n >= rounds-measured {
			many += b / measured
		}
	}
	for range measured {
		one += round(1) / measured
	}
	return many, one
}

// While a snapshot keeps vacuum from removing what was delivered, a claim reads at most half as much again as on a fresh
// table: what a worker has seen of a key once, it does not read again.
// CONTRACT: C-50
func TestKeyedClaimsUnderAHeldSnapshot(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	for _, keys := range []int{100, 500} {
		t.Run(fmt.Sprint(keys, " keys"), func(t *testing.T) {
			t.Parallel()
			cost := func(delivered int) (many, one float64) {
				o := newOutbox(t, pgtest.Migrated(t))
				pgtest.Exec(o, `alter table outbox.outbox_events set (autovacuum_enabled = off)`)
				o.stores = pgtest.Pool(t, o.Config().ConnString()+"&pool_max_conns=1")
				o.hold()
				return o.keyedCost(keys, delivered)
			}
			fresh, freshOne := cost(0)
			held, heldOne := cost(100_000 / keys)
			t.Logf("a claim of %d rows reads %.0f buffers on a fresh table, and %.0f after 100,000 deliveries; one of a row %.0f and %.0f",
				keys, fresh, held, freshOne, heldOne)
			if held > 1.5*fresh || heldOne > 1.5*freshOne {
				t.Errorf("after 100,000 deliveries a claim reads %.0f buffers instead of %.0f, and one of a row %.0f instead of %.0f",
					held, fresh, heldOne, freshOne)
			}
		})
	}
}
