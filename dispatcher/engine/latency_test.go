//go:build unix

package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/client/producer"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

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
	pool  *pgxpool.Pool
	wake  func()
	began time.Time
	cpu   time.Duration
	store *countingStore

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
	l.store = &countingStore{Store: pgstore.New(pgtest.Pool(b, dsn), pgstore.Options{Namespace: "shop"})}
	d, err := engine.New(l.store, dispatcher.Handlers{"orders": l.handle}, dispatcher.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
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
	l.took, l.began, l.cpu = nil, time.Now(), cpuTime(b)+l.backends()
	l.store.claims.Store(0)
	return l
}

// produce commits n events, one by one at random times, and waits for the last one.
func (l *latency) produce(rate, n int) {
	next := time.Now()
	for range n {
		next = next.Add(time.Duration(rand.ExpFloat64() / float64(rate) * float64(time.Second)))
		<-time.After(time.Until(next))
		id := uuid.New()
		if _, err := l.pool.Exec(l.Context(), `insert into outbox.outbox_events (id, namespace, topic, payload)
			values ($1, 'shop', 'orders', '{}')`, id); err != nil {
			l.Fatal(err)
		}
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
	l.ReportMetric((cpuTime(l.B)+l.backends()-l.cpu).Seconds()/seconds*100, "%core") // the producer's included
	l.ReportMetric(float64(l.store.claims.Load())/seconds, "claims/s")
	slices.Sort(l.took)
	for _, p := range []float64{50, 99} {
		l.ReportMetric(float64(l.took[int(float64(len(l.took)-1)*p/100)].Microseconds())/1000, fmt.Sprintf("ms-p%.0f", p))
	}
	l.ReportMetric(0, "ns/op")
}

// backends is the CPU time of the database's processes for this database, where /proc shows it.
func (l *latency) backends() (total time.Duration) {
	rows, err := l.pool.Query(l.Context(), `select pid from pg_stat_activity where datname = current_database()`)
	if err != nil {
		l.Fatal(err)
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		l.Fatal(err)
	}
	const tick = 10 * time.Millisecond
	for _, pid := range pids {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			continue
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		for _, field := range fields[11:13] { // utime and stime
			n, _ := strconv.Atoi(field)
			total += time.Duration(n) * tick
		}
	}
	return total
}
