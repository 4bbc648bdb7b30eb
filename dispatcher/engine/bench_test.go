//go:build linux

package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/client/producer"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

const drained = 200_000

// BenchmarkDrain delivers a backlog to handlers that do nothing: what the engine itself costs, in addition to the
// simplest SQL that does the same with the table, in a loop without an engine. It reports events per
// second, and the CPU time of an event in this process and in the database.
func BenchmarkDrain(b *testing.B) {
	for _, deletes := range []bool{false, true} {
		mode := "kept"
		if deletes {
			mode = "deleted"
		}
		for _, batch := range []int{100, 500, 2000} {
			b.Run(fmt.Sprintf("%s/batch=%d", mode, batch), func(b *testing.B) {
				benchmarkDrain(b, func(pool *pgxpool.Pool) { drain(b, pool, deletes, batch) })
			})
		}
		b.Run(mode+"/raw", func(b *testing.B) {
			benchmarkDrain(b, func(pool *pgxpool.Pool) { drainRaw(b, pool, deletes, 500) })
		})
	}
}

func benchmarkDrain(b *testing.B, drain func(*pgxpool.Pool)) {
	var own, server time.Duration
	for b.Loop() {
		b.StopTimer()
		dsn := pgtest.Migrated(b)
		admin := pgtest.Pool(b, dsn)
		need.OK(b, fillTopic(b.Context(), admin, drained, 200))
		pool := pgtest.Pool(b, dsn)
		before, serverBefore := cpuTime(b), serverTime(b, admin)
		b.StartTimer()
		drain(pool)
		b.StopTimer()
		own, server = own+cpuTime(b)-before, server+serverTime(b, admin)-serverBefore
		pool.Close()
		b.StartTimer()
	}
	events := float64(drained * b.N)
	b.ReportMetric(events/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(own.Microseconds())/events, "cpu-µs/event")
	b.ReportMetric(float64(server.Microseconds())/events, "db-cpu-µs/event")
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	b.ReportMetric(float64(memory.HeapSys)/(1<<20), "heap-MiB")
}

// fillTopic commits events of topic orders, with ids that rise as version 7 does.
func fillTopic(ctx context.Context, pool *pgxpool.Pool, n, size int) error {
	_, err := pool.Exec(ctx, `insert into outbox.outbox_events (id, namespace, topic, payload)
		select (lpad(to_hex(n), 12, '0') || substr(md5(random()::text), 1, 20))::uuid, 'shop', 'orders',
		       to_jsonb(repeat('x', $2::integer - 2))
		from generate_series(1, $1::integer) as n`, n, size)
	return err
}

// drain delivers every event with the engine.
func drain(b testing.TB, pool *pgxpool.Pool, deletes bool, batch int) {
	acked := &drainWatch{done: make(chan struct{})}
	acked.left.Store(drained)
	d, err := engine.New(pgstore.New(pool, pgstore.Options{Namespace: "shop", DeleteDelivered: deletes}),
		dispatcher.Handlers{"orders": func(context.Context, *dispatcher.Event) error { return nil }},
		dispatcher.Config{BatchSize: batch, Observer: acked, Logger: slog.New(slog.DiscardHandler)})
	need.OK(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = d.Run(ctx) }()
	<-acked.done
	cancel()
	<-ended
}

// drainRaw claims and acks every event on two connections, one batch ahead.
func drainRaw(b testing.TB, pool *pgxpool.Pool, deletes bool, batch int) {
	const claim = `with found as materialized (
			select ctid from outbox.outbox_events
			where live and namespace = 'shop' and topic = 'orders' and next_attempt_at <= now() and status = 'pending'
			order by next_attempt_at, id limit $1 for update skip locked)
		update outbox.outbox_events
		set status = 'processing', attempts = attempts + 1, locked_by = $2, locked_until = now() + interval '30 seconds'
		where ctid = any (array(select ctid from found))
		returning id, payload`
	ack := `update outbox.outbox_events set status = 'delivered', locked_by = null, locked_until = null
		where id = any ($1) and locked_by = $2`
	if deletes {
		ack = `delete from outbox.outbox_events where id = any ($1) and locked_by = $2`
	}
	worker := uuid.New()
	batches := make(chan [][16]byte, 1)
	var group errgroup.Group
	group.Go(func() error {
		defer close(batches)
		return relaxed(b.Context(), pool, func(conn *pgx.Conn) error {
			for left := drained; left > 0; {
				rows, err := conn.Query(b.Context(), claim, batch, worker)
				if err != nil {
					return err
				}
				ids := make([][16]byte, 0, batch)
				for rows.Next() {
					ids = append(ids, [16]byte(rows.RawValues()[0]))
				}
				if rows.Err() != nil {
					return rows.Err()
				}
				left -= len(ids)
				batches <- ids
			}
			return nil
		})
	})
	group.Go(func() error {
		return relaxed(b.Context(), pool, func(conn *pgx.Conn) error {
			for ids := range batches {
				if _, err := conn.Exec(b.Context(), ack, ids, worker); err != nil {
					return err
				}
			}
			return nil
		})
	})
	need.OK(b, group.Wait())
}

// relaxed calls do with a connection whose commits do not wait for the disk.
func relaxed(ctx context.Context, pool *pgxpool.Pool, do func(*pgx.Conn) error) error {
	return pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		if _, err := conn.Exec(ctx, `set synchronous_commit = off`); err != nil {
			return err
		}
		return do(conn.Conn())
	})
}

func cpuTime(b testing.TB) time.Duration {
	var usage syscall.Rusage
	need.OK(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// serverTime is the CPU time of the backends that work on the pool's database: the server is on this
// machine.
func serverTime(b testing.TB, pool *pgxpool.Pool) (sum time.Duration) {
	rows, err := pool.Query(b.Context(), `select pid from pg_stat_activity where datname = current_database() and backend_type = 'client backend'`)
	need.OK(b, err)
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	need.OK(b, err)
	for _, pid := range pids {
		var ran time.Duration
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		if err == nil {
			_, err = fmt.Sscan(string(text), (*int64)(&ran))
		}
		if err != nil {
			b.Fatalf("CPU time of backend %d: %v; the server must run on this machine", pid, err)
		}
		sum += ran
	}
	return sum
}

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
				need.OK(b, need.Err(pool.Exec(b.Context(), `insert into outbox.outbox_events (id, namespace, topic, payload, aggregate_id)
					select ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'shop', 'orders', jsonb_build_object('text', repeat('x', 190)), `+key+`
					from generate_series(1, $1::integer) as n`, events)))
				acked := &drainWatch{done: make(chan struct{}), others: make(chan time.Time, 1)}
				acked.left.Store(events)
				acked.cold.Store(events / 2)
				ctx, cancel := context.WithCancel(b.Context())
				ended := make(chan struct{}, test.dispatchers)
				cpu, base := cpuTime(b), serverTime(b, pool)
				b.StartTimer()
				began := time.Now()
				store := newCounting(pgstore.New(pool, pgstore.Options{Namespace: "shop"}))
				for range test.dispatchers {
					d, err := engine.New(store,
						dispatcher.Handlers{"orders": func(context.Context, *dispatcher.Event) error { return nil }},
						dispatcher.Config{Ordering: test.ordering, Observer: acked, Logger: slog.New(slog.DiscardHandler), Topics: []string{"orders"}})
					need.OK(b, err)
					go func() { _ = d.Run(ctx); ended <- struct{}{} }()
				}
				<-acked.done
				b.StopTimer()
				cpu, base = cpuTime(b)-cpu, serverTime(b, pool)-base
				cancel()
				for range test.dispatchers {
					<-ended
				}
				b.ReportMetric(float64(cpu.Microseconds())/events, "cpu-µs/event")
				b.ReportMetric(float64(base.Microseconds())/events, "db-µs/event")
				b.ReportMetric(events/float64(store.n("claim")), "rows/claim")
				if test.hot {
					b.ReportMetric((<-acked.others).Sub(began).Seconds(), "others-s")
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(events*b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
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

// BenchmarkLatency commits events at random times and measures from the producer's commit to the
// handler, by polling alone and with wake-ups. It reports percentiles, and what both sides of the
// dispatcher spend: claims, and CPU time of this process and of the database's backends, for a second.
func BenchmarkLatency(b *testing.B) {
	for _, wakeUp := range []bool{false, true} {
		for _, rate := range []int{5, 100, 500, 2000} {
			b.Run(fmt.Sprintf("wakeUp=%t/rate=%d", wakeUp, rate), func(b *testing.B) {
				l := newLatency(b, wakeUp)
				for b.Loop() {
					l.produce(rate, min(2*rate, 2000))
				}
				l.report()
			})
		}
	}
}

// latency is a dispatcher of one topic, and a producer that notes when its commits returned.
type latency struct {
	*testing.B
	pool   *pgxpool.Pool
	wake   func()
	began  time.Time
	cpu    time.Duration
	claims int64 // when it began
	store  *counting

	mu        sync.Mutex
	arrived   sync.Cond
	committed map[uuid.UUID]time.Time // not delivered yet
	delivered map[uuid.UUID]time.Time // not known as committed yet
	took      []time.Duration
}

func newLatency(b *testing.B, wakeUp bool) *latency {
	dsn := pgtest.Migrated(b)
	l := &latency{B: b, pool: pgtest.Pool(b, dsn), wake: func() {}, committed: map[uuid.UUID]time.Time{}, delivered: map[uuid.UUID]time.Time{}}
	l.arrived.L = &l.mu
	l.store = newCounting(pgstore.New(pgtest.Pool(b, dsn), pgstore.Options{Namespace: "shop"}))
	d, err := engine.New(l.store, dispatcher.Handlers{"orders": l.handle}, dispatcher.Config{Logger: slog.New(slog.DiscardHandler)})
	need.OK(b, err)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = d.Run(ctx) })
	if wakeUp {
		waker := producer.NewWaker(pgtest.Pool(b, dsn), producer.WakerOptions{})
		l.wake = func() { waker.Wake("shop") }
		connect := func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, dsn) }
		group.Go(func() { pgstore.Listen(ctx, connect, "outbox", "shop", d.Wake, slog.New(slog.DiscardHandler)) })
	}
	b.Cleanup(func() { cancel(); group.Wait() })
	l.produce(1000, 200) // connections and plans are made
	l.took, l.began, l.cpu = nil, time.Now(), cpuTime(b)+serverTime(b, l.pool)
	l.claims = l.store.n("claim")
	return l
}

// produce commits n events, one by one at random times, and waits for the last one.
func (l *latency) produce(rate, n int) {
	next := time.Now()
	for range n {
		next = next.Add(time.Duration(rand.ExpFloat64() / float64(rate) * float64(time.Second)))
		<-time.After(time.Until(next))
		id := uuid.New()
		need.OK(l, need.Err(l.pool.Exec(l.Context(), `insert into outbox.outbox_events (id, namespace, topic, payload)
			values ($1, 'shop', 'orders', '{}')`, id)))
		l.note(id, l.committed, l.delivered)
		l.wake()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.committed) > 0 {
		l.arrived.Wait()
	}
}

func (l *latency) handle(_ context.Context, e *dispatcher.Event) error {
	l.note(e.ID, l.delivered, l.committed)
	return nil
}

// note notes one end of an event's way. An event may be delivered before its producer hears of the commit.
func (l *latency) note(id uuid.UUID, this, other map[uuid.UUID]time.Time) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := other[id]; ok {
		l.took = append(l.took, max(0, now.Sub(at)))
		delete(other, id)
		l.arrived.Signal()
		return
	}
	this[id] = now
}

func (l *latency) report() {
	seconds := time.Since(l.began).Seconds()
	l.ReportMetric((cpuTime(l.B)+serverTime(l.B, l.pool)-l.cpu).Seconds()/seconds*100, "%core") // the producer's included
	l.ReportMetric(float64(l.store.n("claim")-l.claims)/seconds, "claims/s")
	slices.Sort(l.took)
	for _, p := range []float64{50, 99} {
		l.ReportMetric(float64(l.took[int(float64(len(l.took)-1)*p/100)].Microseconds())/1000, fmt.Sprintf("ms-p%.0f", p))
	}
	l.ReportMetric(0, "ns/op")
}
