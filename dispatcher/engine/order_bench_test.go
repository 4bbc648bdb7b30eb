//go:build linux

package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// BenchmarkOrder drains a backlog with and without order per key, by one and more dispatchers, and
// next to a key that has half of all rows. It reports events per second, the database's and this
// process's CPU time for an event, and for the hot key when the others were done.
func BenchmarkOrder(b *testing.B) {
	const events = 50_000
	for _, test := range []struct {
		name        string
		ordering    dispatcher.Ordering
		hot         bool
		dispatchers int
	}{
		{"none", dispatcher.OrderingNone, false, 1},
		{"key", dispatcher.OrderingKey, false, 1},
		{"none/2", dispatcher.OrderingNone, false, 2},
		{"key/2", dispatcher.OrderingKey, false, 2},
		{"none/4", dispatcher.OrderingNone, false, 4},
		{"key/4", dispatcher.OrderingKey, false, 4},
		{"key/hot", dispatcher.OrderingKey, true, 1},
		{"none/hot", dispatcher.OrderingNone, true, 1},
	} {
		b.Run(test.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				pool := pgtest.Pool(b, pgtest.Migrated(b))
				key := `(n % 10000)::text`
				if test.hot {
					key = `case when n % 2 = 0 then 'hot' else (n / 2 % 10000)::text end`
				}
				if _, err := pool.Exec(b.Context(), `insert into outbox.outbox_events (id, namespace, topic, payload, aggregate_id)
					select ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'shop', 'orders', jsonb_build_object('text', repeat('x', 190)), `+key+`
					from generate_series(1, $1::integer) as n`, events); err != nil {
					b.Fatal(err)
				}
				acked := &drainWatch{done: make(chan struct{}), others: make(chan time.Time, 1)}
				acked.left.Store(events)
				acked.cold.Store(events / 2)
				ctx, cancel := context.WithCancel(b.Context())
				ended := make(chan struct{}, test.dispatchers)
				cpu, base := cpuTime(b), backends(b, pool)
				b.StartTimer()
				began := time.Now()
				var claims atomic.Int64
				for range test.dispatchers {
					d, err := engine.New(&counted{Store: pgstore.New(pool, pgstore.Options{Namespace: "shop"}), n: &claims},
						dispatcher.Handlers{"orders": func(context.Context, *dispatcher.Event) error { return nil }},
						dispatcher.Config{Ordering: test.ordering, Observer: acked, Logger: slog.New(slog.DiscardHandler), Topics: []string{"orders"}})
					if err != nil {
						b.Fatal(err)
					}
					go func() { _ = d.Run(ctx); ended <- struct{}{} }()
				}
				<-acked.done
				b.StopTimer()
				cpu, base = cpuTime(b)-cpu, backends(b, pool)-base
				cancel()
				for range test.dispatchers {
					<-ended
				}
				b.ReportMetric(float64(cpu.Microseconds())/events, "cpu-µs/event")
				b.ReportMetric(float64(base.Microseconds())/events, "db-µs/event")
				b.ReportMetric(events/float64(claims.Load()), "rows/claim")
				if test.hot {
					b.ReportMetric((<-acked.others).Sub(began).Seconds(), "others-s")
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(events*b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// counted is a store that counts its claims.
type counted struct {
	dispatcher.Store
	n *atomic.Int64
}

func (c *counted) Claim(ctx context.Context, req dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	c.n.Add(1)
	return c.Store.Claim(ctx, req)
}

// drainWatch is an Observer that records when all is acked, and when all but the hot key is.
type drainWatch struct {
	watcher
	left, cold atomic.Int64
	done       chan struct{}
	others     chan time.Time
}

func (*drainWatch) Claimed(string, int)                                       {}
func (*drainWatch) Delivered(*dispatcher.Event, time.Duration, time.Duration) {}
func (d *drainWatch) Acked(e *dispatcher.Event, _ time.Duration) {
	if e.AggregateID != "hot" && d.cold.Add(-1) == 0 {
		d.others <- time.Now()
	}
	if d.left.Add(-1) == 0 {
		close(d.done)
	}
}

// backends is the CPU time of the pool's sessions.
func backends(b *testing.B, pool *pgxpool.Pool) (sum time.Duration) {
	b.Helper()
	rows, err := pool.Query(b.Context(), `select pid from pg_stat_activity where datname = current_database()`)
	if err != nil {
		b.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var pid, nanos int64
		if err := rows.Scan(&pid); err != nil {
			b.Fatal(err)
		}
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid)); err == nil {
			if _, err := fmt.Sscan(strings.Fields(string(stat))[0], &nanos); err != nil {
				b.Fatal(err)
			}
			sum += time.Duration(nanos)
		}
	}
	return sum
}
