package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

// cell is one subject of the benchmark, and one of its tables.
type cell struct {
	name, title, about string
	columns            []metric
	run                func(ctx context.Context, b *bench)
}

var cells = []cell{
	{
		name: "drain", title: "Drain", run: runDrain, columns: []metric{perSecond, dbCPU, clientCPU, walWork, walInsert},
		about: "Events of 200 bytes, committed in bulk and then worked off by one process, with a handler that does nothing.",
	},
	{
		name: "latency", title: "Latency", run: runLatency, columns: []metric{p50, p95, p99, longest, dbCPU, clientCPU},
		about: "From the commit's return to the handler, one event in a transaction, at a steady rate. The database's CPU time has the producers' " +
			"inserts in it.",
	},
	{
		name: "keys", title: "Order per key", run: runKeys, columns: []metric{perSecond, othersRate, inversions, dbCPU, clientCPU, walWork},
		about: "The drain of events with keys: without order, with ordering Key, and with ordering Key next to as many again of one hot key. Neither " +
			"River nor the loop of plain SQL has an order by key.",
	},
	{
		name: "kafka", title: "Into Kafka, next to Debezium", run: runKafka,
		columns: []metric{perSecond, p50, p99, dbCPU, clientCPU, brokerCPU, walInsert, walWork, peakMiB, doubled, statementRate},
		about: "The dispatcher's binary, and Debezium's outbox event router in Kafka Connect, in turn: from one PostgreSQL, with wal_level = logical, " +
			"into one broker, one partition, acks=all. Producers insert and delete nothing, for both. Waits are from just before the producer's " +
			"transaction to the broker's append. The CPU time of an idle broker is taken off. The backlog is committed in transactions of 500 events " +
			"while the relay is stopped by SIGSTOP, after half as many were delivered (warm), or before the relay starts (cold: the start counts). " +
			"The WAL of the inserts is apart from that of the delivery, but for the stream. CPU time of idle relays is in µs for each second.",
	},
}

func runDrain(ctx context.Context, b *bench) {
	own, deleted := ours(), ours()
	deleted.name, deleted.settings, deleted.kept, deleted.job.Delete = "ours, deleted at the ack", "retention.delivered 0s; the rest default", "", true
	loop, loopDeleted := plain(), plain()
	loopDeleted.name, loopDeleted.settings, loopDeleted.kept, loopDeleted.job.Delete = "plain SQL, deleted", "the same, and the other connection deletes", "", true
	for range b.runs + min(2, b.runs-1) {
		for _, s := range []system{own, loop, deleted, loopDeleted, riverDefault(), riverTuned()} {
			l := load{events: b.events}
			if s.slow {
				l.events = b.slow
			}
			b.measure(ctx, s.row("drain", ""), func() (measure, error) { return b.drain(ctx, s, l) })
		}
	}
}

func runLatency(ctx context.Context, b *bench) {
	woken, loop := ours(), plain()
	woken.name, woken.settings, woken.job.Listen = "ours, woken", "wakeUp Listen, producer.Waker after the commit; the rest default", true
	woken.produce = produceAndWake
	loop.settings += ", polled each 2 ms"
	for i, rate := range b.rates {
		for n := range b.runs {
			for _, s := range []system{ours(), woken, loop, riverDefault(), riverTuned()} {
				if i == 0 || n == 0 { // of the other rates a single run
					b.measure(ctx, s.row("latency", perSecondText(rate)), func() (measure, error) { return b.latency(ctx, s, rate) })
				}
			}
		}
	}
}

func runKeys(ctx context.Context, b *bench) {
	keyed := ours()
	keyed.name, keyed.settings, keyed.job.Key = "ours, ordering Key", "ordering Key; the rest default", true
	many := load{events: b.events, keys: b.keys}
	hot := load{events: 2 * b.events, keys: b.keys, hot: true}
	for range b.runs + min(2, b.runs-1) {
		b.measure(ctx, ours().row("keys", "many keys"), func() (measure, error) { return b.drain(ctx, ours(), many) })
		b.measure(ctx, keyed.row("keys", "many keys"), func() (measure, error) { return b.drain(ctx, keyed, many) })
		b.measure(ctx, keyed.row("keys", "many keys and a hot one"), func() (measure, error) { return b.drain(ctx, keyed, hot) })
	}
}

func perSecondText(rate float64) string { return fmt.Sprintf("%.0f/s", rate) }

// system is something that a user could pick, in one mode.
type system struct {
	name     string
	settings string // what was chosen, for the tables
	slow     bool   // by its design: it drains fewer events

	job job // what its worker process does
	// setup makes the schema, insert adds events through the public bulk call.
	setup  func(ctx context.Context, dsn string) error
	insert func(ctx context.Context, dsn string, l load) error
	// produce returns a function that adds one event in a transaction of its own.
	produce func(pool *pgxpool.Pool) (produce, error)
	// left is SQL for whether events wait or are in work. kept counts the rows that are kept of delivered events, and is
	// empty when none are.
	left, kept string
}

// produce adds event n and returns after the commit.
type produce func(ctx context.Context, n int) error

// row is one of the tables' for the system.
func (s system) row(cell, which string) row {
	return row{cell: cell, system: s.name, settings: s.settings, which: which}
}

// load is what is inserted before a drain.
type load struct {
	events int
	// keys is the number of keys; 0 gives no event a key. With hot, every second event is of one more.
	keys int
	hot  bool
}

func (l load) key(n int) string {
	switch {
	case l.keys == 0:
		return ""
	case l.hot && n%2 == 0:
		return hotKey
	case l.hot:
		n /= 2 // the others are of all the keys, too
	}
	return fmt.Sprint("key-", n*7919%l.keys)
}

const hotKey = "hot"

// inParts calls add with the parts of n events, size at a time, from two goroutines.
func inParts(ctx context.Context, n, size int, add func(ctx context.Context, from, to int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2)
	for from := 0; from < n && ctx.Err() == nil; from += size {
		group.Go(func() error { return add(ctx, from, min(from+size, n)) })
	}
	return group.Wait()
}
