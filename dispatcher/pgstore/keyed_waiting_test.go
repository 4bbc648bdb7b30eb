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
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// trips counts round trips: each is a batch. It counts the claims in them that were made by claim_dense.sql,
// too, and those that were not.
type trips struct{ n, dense, keyed atomic.Int64 }

func (c *trips) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.n.Add(1)
	return ctx
}
func (c *trips) TraceBatchQuery(_ context.Context, _ *pgx.Conn, q pgx.TraceBatchQueryData) {
	switch q.SQL {
	case pgstore.ClaimDenseSQL():
		c.dense.Add(1)
	case pgstore.ClaimKeyedSQL():
		c.keyed.Add(1)
	}
}
func (*trips) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
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
// not go round and round: it looks from its floor, each time at four times as many rows, and in two or three
// steps from the front. How these take turns depends on the time they take, so the statements of ten claims count.
// (The rows are in no order of seq, so the first of a key may be anywhere.)
// CONTRACT: C-50
func TestClaimsThatWait(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		rows []int // of each topic
		age  string
		most int64 // statements of a claim, on average
	}{
		{[]int{10}, "0", 2}, {[]int{10}, "1 minute", 2},
		{[]int{100}, "0", 5}, {[]int{100}, "1 minute", 5},
		{[]int{1000}, "0", 6}, {[]int{1000}, "1 minute", 6},
		{[]int{10_000}, "0", 9}, {[]int{10_000}, "1 minute", 9},
		{[]int{10, 100, 1000, 10_000}, "0", 10}, {[]int{10, 100, 1000, 10_000}, "1 minute", 10},
	} {
		t.Run(fmt.Sprintf("%d rows, due for %s", test.rows, test.age), func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, pgtest.Migrated(t))
			req := dispatcher.ClaimRequest{Lease: time.Minute, MaxAttempts: 10, Keys: &dispatcher.KeyOrder{PerKey: 1}}
			for i, rows := range test.rows {
				topic := fmt.Sprint("orders ", i)
				pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload, next_attempt_at)
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
			const claims = 10
			before := made.n.Load()
			for range claims {
				if claimed, err := store.Claim(t.Context(), req); err != nil || len(claimed.Events) > 0 {
					t.Errorf("a claim found %d rows, %v, want none", len(claimed.Events), err)
				}
			}
			if n := made.n.Load() - before; n > claims*test.most {
				t.Errorf("%d claims took %d statements, want at most %d each", claims, n, test.most)
			}
		})
	}
}

// Where ranges are dense, a claim that reads keys again does it in the same transaction, with a statement of
// their own: it gets the next rows of each, and as many others as there is room for.
// CONTRACT: C-50
func TestKeysNextToDenseRanges(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fillKeys(8000, 8000, "orders")
	pgtest.Exec(o, `update outbox.outbox_events set topic = case when seq % 4 < 2 then 'orders' else 'others' end,
		aggregate_id = case when seq % 2 = 0 and seq <= 1600 then 'hot' else aggregate_id end`)
	pgtest.Exec(o, `update outbox.outbox_events set key_hash = outbox.outbox_key_hash(namespace, topic, partition_key, aggregate_id)`)
	made := o.count()
	store := o.Store("shop", uuid.New())
	held, last := []dispatcher.Lease{}, map[string]int64{}
	claim := func(maxBytes int64, wantHot, wantOthers string) {
		t.Helper()
		all, dense, keyed := made.n.Load(), made.dense.Load(), made.keyed.Load()
		claimed, err := store.Claim(t.Context(), dispatcher.ClaimRequest{
			Shares: []dispatcher.Share{{Topic: "orders", Limit: 40}, {Topic: "others", Limit: 40}}, Lease: time.Minute,
			MaxAttempts: 10, MaxBytes: maxBytes, Keys: &dispatcher.KeyOrder{PerKey: 10},
		})
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, leasesOf(claimed.Events)...)
		hot, others, reached := map[string]int{}, map[string]int{}, "orders"
		for _, e := range claimed.Events {
			if e.Topic < reached {
				t.Errorf("a row of %s comes behind those of %s", e.Topic, reached)
			}
			reached = e.Topic
			if e.AggregateID != "hot" {
				others[e.Topic]++
				continue
			}
			if want := last[e.Topic] + 4; last[e.Topic] > 0 && e.Seq != want {
				t.Errorf("row %d of the hot key in %s came, want %d", e.Seq, e.Topic, want)
			}
			hot[e.Topic]++
			last[e.Topic] = e.Seq
		}
		if wantOthers == "" {
			return
		}
		if fmt.Sprint(hot) != wantHot || fmt.Sprint(others) != wantOthers {
			t.Errorf("of the hot key came %v, and others %v, want %s and %s", hot, others, wantHot, wantOthers)
		}
		if dense, keyed = made.dense.Load()-dense, made.keyed.Load()-keyed; dense != 1 || keyed != 1 {
			t.Errorf("%d statements for ranges, and %d for keys, want one of each", dense, keyed)
		}
		if all = made.n.Load() - all; all != 1 {
			t.Errorf("%d round trips, want 1", all)
		}
	}
	ack := func() {
		t.Helper()
		if lost, err := store.Ack(t.Context(), held); err != nil || len(lost) > 0 {
			t.Fatalf("lost %v, %v", lost, err)
		}
		held = nil
	}
	for range 80 { // on a slow machine the first passes take longer
		before := made.dense.Load()
		claim(0, "", "")
		ack()
		if made.dense.Load() > before {
			break
		}
	}
	pgstore.NoPass(store)
	pgstore.Recall(store)
	claim(0, "map[orders:5 others:5]", "map[orders:35 others:35]")
	pgstore.Recall(store) // the last ones are still held
	claim(0, "map[]", "map[orders:35 others:35]")
	ack()
	pgstore.Recall(store) // room for eight rows of two bytes, and one more part in eight for keys
	claim(16, "map[orders:1]", "map[orders:7]")
}
