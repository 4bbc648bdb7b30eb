package pgstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// BenchmarkClaimAck drains a backlog with one claim and one ack at a time: the engine's hot path
// without the engine. events/s is the figure to read.
func BenchmarkClaimAck(b *testing.B) {
	for _, size := range []int{100, 500} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			pool := pgtest.Pool(b, pgtest.Migrated(b))
			store := pgstore.New(pool, pgstore.Options{Namespace: "shop"})
			const rows = 50_000
			from := 0
			fill := func() {
				_, err := pool.Exec(b.Context(), `insert into outbox.outbox_events (id, namespace, topic, payload)
					select ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'shop', 'orders',
					       jsonb_build_object('k', repeat('x', 190))
					from generate_series($1::bigint, $1::bigint + $2 - 1) as n`, from, rows)
				from += rows
				if err != nil {
					b.Fatal(err)
				}
			}
			n := 0
			b.ReportAllocs()
			b.ResetTimer()
			for b.Loop() {
				claimed, err := store.Claim(b.Context(), dispatcher.ClaimRequest{
					Shares: []dispatcher.Share{{Topic: "orders", Limit: size}}, Lease: time.Minute, MaxAttempts: 3, MaxBytes: 32 << 20,
				})
				if err != nil {
					b.Fatal(err)
				}
				if len(claimed.Events) == 0 {
					b.StopTimer()
					fill()
					b.StartTimer()
					continue
				}
				leases := make([]dispatcher.Lease, len(claimed.Events))
				for i, e := range claimed.Events {
					leases[i] = e.Lease()
				}
				if lost, err := store.Ack(b.Context(), leases); err != nil || len(lost) > 0 {
					b.Fatal(lost, err)
				}
				n += len(leases)
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
