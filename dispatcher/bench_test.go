//go:build unix

package dispatcher_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/pgtest"
)

// BenchmarkDrain delivers a backlog to handlers that do nothing: what the engine itself costs. It
// reports events per second, this process's CPU time for an event, and the memory at the end.
func BenchmarkDrain(b *testing.B) {
	const events = 200_000
	for _, batch := range []int{100, 500} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				pool := pgtest.Pool(b, pgtest.Migrated(b))
				if _, err := pool.Exec(b.Context(), `insert into outbox.outbox_events (id, namespace, topic, payload)
					select gen_random_uuid(), 'shop', 'orders', jsonb_build_object('text', repeat('x', 190))
					from generate_series(1, $1::integer)`, events); err != nil {
					b.Fatal(err)
				}
				acked := &counter{done: make(chan struct{})}
				acked.left.Store(events)
				d, err := dispatcher.New(pgstore.New(pool, pgstore.Options{Namespace: "shop"}),
					dispatcher.Handlers{"orders": func(context.Context, *dispatcher.Event) error { return nil }},
					dispatcher.Config{BatchSize: batch, Observer: acked, Logger: slog.New(slog.DiscardHandler)})
				if err != nil {
					b.Fatal(err)
				}
				ctx, cancel := context.WithCancel(b.Context())
				ended := make(chan struct{})
				cpu := cpuTime(b)
				b.StartTimer()
				go func() { defer close(ended); _ = d.Run(ctx) }()
				<-acked.done
				b.StopTimer()
				cpu = cpuTime(b) - cpu
				cancel()
				<-ended
				b.ReportMetric(float64(cpu.Microseconds())/events, "cpu-µs/event")
				b.StartTimer()
			}
			b.ReportMetric(float64(events*b.N)/b.Elapsed().Seconds(), "events/s")
			var memory runtime.MemStats
			runtime.ReadMemStats(&memory)
			b.ReportMetric(float64(memory.HeapSys)/(1<<20), "heap-MiB")
		})
	}
}

// counter is an Observer that closes done when left events are acked.
type counter struct {
	watcher
	left atomic.Int64
	done chan struct{}
}

func (c *counter) Claimed(string, int)                        {}
func (c *counter) Delivered(*dispatcher.Event, time.Duration) {}
func (c *counter) Acked(_ *dispatcher.Event, _ time.Duration) {
	if c.left.Add(-1) == 0 {
		close(c.done)
	}
}

func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
