//go:build linux

package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
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
		if err := fillTopic(b.Context(), admin, drained, 200); err != nil {
			b.Fatal(err)
		}
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
	acked := &counter{done: make(chan struct{})}
	acked.left.Store(drained)
	d, err := engine.New(pgstore.New(pool, pgstore.Options{Namespace: "shop", DeleteDelivered: deletes}),
		dispatcher.Handlers{"orders": func(context.Context, *dispatcher.Event) error { return nil }},
		dispatcher.Config{BatchSize: batch, Observer: acked, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
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
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
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

// counter is an Observer that closes done when left events are acked.
type counter struct {
	watcher
	left atomic.Int64
	done chan struct{}
}

func (c *counter) Claimed(string, int)                                       {}
func (c *counter) Delivered(*dispatcher.Event, time.Duration, time.Duration) {}
func (c *counter) Acked(_ *dispatcher.Event, _ time.Duration) {
	if c.left.Add(-1) == 0 {
		close(c.done)
	}
}

func cpuTime(b testing.TB) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// serverTime is the CPU time of the backends that work on the pool's database: the server is on this
// machine.
func serverTime(b testing.TB, pool *pgxpool.Pool) (sum time.Duration) {
	rows, err := pool.Query(b.Context(), `select pid from pg_stat_activity where datname = current_database() and backend_type = 'client backend'`)
	if err != nil {
		b.Fatal(err)
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		b.Fatal(err)
	}
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
