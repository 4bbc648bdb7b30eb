package retention_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/retention"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// BenchmarkSweepDuringDelivery measures what a sweep costs delivery: the latency of events before, while and after as many
// delivered rows are removed as OUTBOX_SWEEP_ROWS says (200,000), while OUTBOX_SWEEP_RATE (500) events flow in a second.
// Run it with -benchtime 1x -timeout 1h. OUTBOX_SWEEP_PLOT names a file for a picture of it.
func BenchmarkSweepDuringDelivery(b *testing.B) {
	rows, rate := fromEnv(b, "OUTBOX_SWEEP_ROWS", 200_000), fromEnv(b, "OUTBOX_SWEEP_RATE", 500)
	srv := pgtest.Server(b)
	conn, err := pgx.Connect(b.Context(), srv.DSN("postgres"))
	if err == nil {
		_, err = migrations.Up(b.Context(), conn, pgtest.Schema)
	}
	for n := 0; err == nil && n < rows; n += 50_000 {
		_, err = conn.Exec(b.Context(), `insert into outbox.outbox_events (id, namespace, topic, payload, status, updated_at)
			select lpad(to_hex(n), 32, '0')::uuid, 'shop', 'orders', jsonb_build_object('k', repeat('x', 191)), 'delivered', now() - interval '8 days'
			from generate_series($1::integer + 1, $1 + 50000) as n`, n)
	}
	if err == nil {
		_, err = conn.Exec(b.Context(), `vacuum analyze outbox.outbox_events`)
	}
	if err != nil {
		b.Fatal(err)
	}
	pool := pgtest.Pool(b, srv.DSN("postgres"))
	seen := &latencies{}
	d, err := engine.New(pgstore.New(pool, pgstore.Options{Namespace: "shop"}), nothing{}, dispatcher.Config{Topics: []string{"orders"}, Observer: seen})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	work.Go(func() { _ = d.Run(ctx) })
	work.Go(func() { produce(ctx, pgtest.Pool(b, srv.DSN("postgres")), rate) })

	var points []point
	at := 0.0
	report := func(phase string, began time.Time, wal int64) {
		var bytes, now int64
		if err := conn.QueryRow(b.Context(), `select pg_total_relation_size('outbox.outbox_events'), pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint`).Scan(&bytes, &now); err != nil {
			b.Fatal(err)
		}
		n, p50, p99, most := seen.take()
		at += time.Since(began).Seconds()
		points = append(points, point{phase, at, float64(bytes >> 20), p99})
		fmt.Printf("%-6s %4.0f s: %6d events, latency p50 %6.1f ms, p99 %6.1f ms, max %6.1f ms; table %5d MB; WAL %5d B an event\n", phase, time.Since(began).Seconds(),
			n, p50, p99, most, bytes>>20, (now-wal)/max(int64(n), 1))
	}
	position := func() (wal int64) {
		_ = conn.QueryRow(b.Context(), `select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint`).Scan(&wal)
		return wal
	}
	const turn = 20 * time.Second
	measure := func(phase string, turns int, until <-chan struct{}) {
		for i := 0; i < turns; i++ {
			began, wal := time.Now(), position()
			select {
			case <-time.After(turn):
			case <-until:
				i = turns
			}
			report(phase, began, wal)
		}
	}
	pgtest.Eventually(b, "5 seconds of events, while the pool fills", time.Minute, func() bool {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		return len(seen.all) >= 5*rate
	})
	seen.take()
	b.ResetTimer()
	measure("before", 3, nil)
	var removed int64
	s := retention.New(pool, retention.Options{Delivered: 7 * day, DeadResolved: 30 * day, Removed: func(c retention.Counts) { removed += c.Delivered }})
	ended := make(chan struct{})
	began := time.Now()
	go func() {
		defer close(ended)
		if ran, err := s.Sweep(ctx); !ran || err != nil {
			b.Errorf("swept: %v, %v", ran, err)
		}
	}()
	measure("while", 1000, ended)
	<-ended
	fmt.Printf("removed %d rows in %s\n", removed, time.Since(began).Round(time.Second))
	measure("after", 3, nil)
	if file := os.Getenv("OUTBOX_SWEEP_PLOT"); file != "" {
		if err := os.WriteFile(file, []byte(plot(points)), 0o644); err != nil {
			b.Error(err)
		}
	}
}

func fromEnv(b *testing.B, name string, n int) int {
	if text := os.Getenv(name); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			b.Fatalf("%s: %v", name, err)
		}
	}
	return n
}

// produce adds events, so many a second, in transactions of a 50th.
func produce(ctx context.Context, pool *pgxpool.Pool, rate int) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		_, _ = pool.Exec(ctx, `select outbox.enqueue('shop', 'orders', jsonb_build_object('k', repeat('x', 191))) from generate_series(1, $1::integer)`, rate/50)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// nothing is a destination that takes all.
type nothing struct{}

func (nothing) Deliver(_ context.Context, events []*dispatcher.Event) []error {
	return make([]error, len(events))
}
func (nothing) BatchSize() int              { return 100 }
func (nothing) Probe(context.Context) error { return nil }
func (nothing) Close(context.Context) error { return nil }

// latencies are those of events from their creation until they were acked, in milliseconds.
type latencies struct {
	mu  sync.Mutex
	all []float64
}

func (l *latencies) take() (n int, p50, p99, most float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.all)
	if n = len(l.all); n > 0 {
		p50, p99, most = l.all[n/2], l.all[n*99/100], l.all[n-1]
	}
	l.all = nil
	return n, p50, p99, most
}

func (l *latencies) Acked(_ *dispatcher.Event, latency time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, float64(latency.Microseconds())/1000)
}
func (*latencies) Claimed(string, int)                                           {}
func (*latencies) Delivered(*dispatcher.Event, time.Duration, time.Duration)     {}
func (*latencies) Failed(*dispatcher.Event, error, time.Duration, time.Duration) {}
func (*latencies) DeadLettered(dispatcher.DeadEvent)                             {}
func (*latencies) LeaseLost(int)                                                 {}
func (*latencies) Refused(int)                                                   {}
