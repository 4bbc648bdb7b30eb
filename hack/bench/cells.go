package main

import (
	"context"
	"fmt"
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
