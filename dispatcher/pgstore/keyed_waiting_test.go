package pgstore_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/pgtest"
)

// trips counts round trips: each is a batch.
type trips struct{ n atomic.Int64 }

func (c *trips) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.n.Add(1)
	return ctx
}
func (*trips) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*trips) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
func (*trips) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (*trips) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// count makes the stores count their round trips.
func (o *outbox) count() *trips {
	o.Helper()
	var c trips
	cfg := o.stores.Config()
	cfg.ConnConfig.Tracer = &c
	pool, err := pgxpool.NewWithConfig(o.Context(), cfg)
	if err != nil {
		o.Fatal(err)
	}
	o.Cleanup(pool.Close)
	o.stores = pool
	return &c
}

// While all that is due waits for what another worker holds, a claim looks at it once and returns: it does
// not go round and round. (The rows are in no order of seq, so the first of a key may be anywhere.)
// CONTRACT: C-50
func TestClaimsThatWait(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		rows []int // of each topic
		age  string
		most int64 // statements of a claim
	}{
		{[]int{10}, "0", 1}, {[]int{10}, "1 minute", 1},
		{[]int{100}, "0", 3}, {[]int{100}, "1 minute", 3},
		{[]int{1000}, "0", 4}, {[]int{1000}, "1 minute", 4},
		{[]int{10_000}, "0", 6}, {[]int{10_000}, "1 minute", 6},
		{[]int{10, 100, 1000, 10_000}, "0", 7}, {[]int{10, 100, 1000, 10_000}, "1 minute", 7},
	} {
		t.Run(fmt.Sprintf("%d rows, due for %s", test.rows, test.age), func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, pgtest.Migrated(t))
			req := dispatcher.ClaimRequest{Lease: time.Minute, MaxAttempts: 10, Keys: &dispatcher.KeyOrder{PerKey: 1}}
			for i, rows := range test.rows {
				topic := fmt.Sprint("orders ", i)
				o.exec(`insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload, next_attempt_at)
					select gen_random_uuid(), 'shop', $1, 'key ' || n % 5, '{}', now() - $3::interval from generate_series(1, $2::integer) as n`, topic, rows+5, test.age)
				req.Shares = append(req.Shares, dispatcher.Share{Topic: topic, Limit: 17})
			}
			made := o.count()
			holder := o.Store("shop", uuid.New())
			for held, claims := 0, 0; held < 5*len(test.rows); claims++ {
				claimed, err := holder.Claim(t.Context(), req)
				if held += len(claimed.Events); err != nil || claims > 100 {
					t.Fatalf("%d rows are held after %d claims, %v, want the first of each key", held, claims, err)
				}
			}
			store := o.Store("shop", uuid.New())
			for claim := range 10 {
				before := made.n.Load()
				claimed, err := store.Claim(t.Context(), req)
				if n := made.n.Load() - before; err != nil || len(claimed.Events) > 0 || n > test.most {
					t.Errorf("claim %d: %d statements for %d rows, %v, want at most %d, and no row", claim, n, len(claimed.Events), err, test.most)
				}
			}
		})
	}
}
