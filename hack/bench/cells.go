package main

import (
	"context"
	"fmt"
	"time"
)

// sizes say how large a run of the benchmark is.
type sizes struct {
	note           string // for the reader of the results
	drain, million int
	behind         int // events drained behind a backlog
	backlog        int // its rows
	payloads       map[int]int
	large          int // events of 1 MiB
	keys           int
	pace           time.Duration
	rates          []float64 // events per second; the first is the one that is repeated
	manyRate       float64   // with many topics
	run            time.Duration
	idle           time.Duration
	batches        int           // transactions of a round of the cell about producers, of 500 events
	singles        int           // and of one
	kafka, outage  time.Duration // of the cells kafka and outage
	down           time.Duration // of the broker in the cell debezium; 0: it is not killed
}

var (
	standard = sizes{
		drain: 200_000, million: 1_000_000, behind: 200_000, backlog: 10_000_000,
		payloads: map[int]int{1 << 10: 100_000, 16 << 10: 10_000}, large: 200_000, keys: 10_000,
		pace: 6 * time.Second, rates: []float64{500, 100, 2000}, manyRate: 1000, run: 10 * time.Second, idle: 20 * time.Second,
		kafka: 30 * time.Second, outage: time.Minute, down: 20 * time.Second, batches: 10, singles: 300,
	}
	full = sizes{
		drain: 200_000, million: 1_000_000, behind: 200_000, backlog: 10_000_000,
		payloads: map[int]int{1 << 10: 200_000, 16 << 10: 50_000}, large: 1_000_000, keys: 10_000,
		pace: 30 * time.Second, rates: []float64{500, 100, 2000}, manyRate: 1000, run: 30 * time.Second, idle: 30 * time.Second,
		kafka: 30 * time.Second, outage: time.Minute, down: 20 * time.Second, batches: 10, singles: 300,
	}
	quick = sizes{
		note:  "This was a quick run, to see whether everything works. Its numbers say nothing about speed.",
		drain: 2000, million: 5000, behind: 2000, backlog: 20_000,
		payloads: map[int]int{1 << 10: 500, 16 << 10: 100}, large: 60, keys: 50,
		pace: time.Second, rates: []float64{200}, manyRate: 300, run: 5 * time.Second, idle: time.Second,
		kafka: 2 * time.Second, outage: 5 * time.Second, batches: 2, singles: 10,
	}
)

// cell is one subject of the benchmark, and one of its tables.
type cell struct {
	name, title, about string
	columns            []metric
	minutes            float64 // that a default run takes
	run                func(ctx context.Context, b *bench)
}

var throughput = []metric{perSecond, dbCPU, clientCPU, walWork, walInsert, hotShare, peakMemMiB}

var cells = []cell{
	{
		name: "drain", title: "Drain", minutes: 8, columns: throughput, run: runDrain,
		about: "Events of 200 bytes, inserted in bulk, then worked off by handlers that do nothing. The peak of a system in Go is of " +
			"this program as its worker, which links all that is compared: what a dispatcher takes is in the table Memory.",
	},
	{
		name: "latency", title: "Latency", minutes: 8, columns: []metric{p50, p95, p99, pMax, dbLoad, clientLoad}, run: runLatency,
		about: "From the commit's return to the handler, one event in a transaction, at a steady rate.",
	},
	{
		name: "enqueue", title: "What producers pay", minutes: 1, columns: []metric{insertCPU}, run: runEnqueue,
		about: "CPU time of the database's process that takes the events, with begin and commit. Payloads of 200 bytes, 10,000 " +
			"aggregates, one connection, a commit that waits for the disk. River and Graphile Worker have no aggregates.",
	},
	{
		name: "keys", title: "Order per key", minutes: 3, run: runKeys,
		columns: []metric{perSecond, othersRate, inversions, dbCPU, clientCPU, walWork},
		about:   "The drain of events with keys: without order, with ordering Key, and next to as many again of one hot key.",
	},
	{
		name: "topics", title: "A hundred topics", minutes: 1.5, run: runTopics,
		columns: []metric{p50, p99, medianTopic, worstTopic, dbLoad, clientLoad},
		about:   "Latency with 100 topics of unequal load: the topic that waits longest, and the one in the middle.",
	},
	{
		name: "idle", title: "Idle", minutes: 1, columns: []metric{clientLoad, dbLoad, callRate, peakMemMiB, fileMemMiB},
		about: "The dispatcher's binary with default settings and nothing to do.",
		run: func(ctx context.Context, b *bench) {
			b.measure(ctx, "idle", system{Name: binaryDefault, Settings: "all default"}, "", func() (measure, error) { return b.idle(ctx, b.size.idle) })
		},
	},
	{
		name: "memory", title: "Memory", minutes: 1.5, columns: []metric{peakMemMiB, fileMemMiB, perSecond, clientCPU}, run: runMemory,
		about: "The dispatcher's binary, as a user has it, delivers to the log sink as fast as it can, for some seconds. The peak is " +
			"the most that its process ever had mapped. It includes the pages of its file, which a node keeps once for all " +
			"pods, and can drop.",
	},
	{
		name: "backlog", title: "Next to a backlog", minutes: 6, run: runBacklog,
		columns: []metric{claimBuffers, claimMillis, perSecond, dbCPU, clientCPU, walWork},
		about: "What a claim costs, in buffers that it reads and in time, next to rows that are not its business, " +
			"and while a transaction holds a snapshot from before the insert to the end. One run.",
	},
	{
		name: "retention", title: "Next to retention", minutes: 8, run: runRetention,
		columns: []metric{p50, p99, pMax, dbLoad, clientLoad, removedRate},
		about:   "Latency in a table of delivered rows that are old, in turns: while all of them stay, and while a second dispatcher removes them.",
	},
	{
		name: "million", title: "Drain of a million", minutes: 4, columns: throughput,
		about: "The drain with more events, one run.",
		run: func(ctx context.Context, b *bench) {
			for _, s := range append(own(), b.peers(riverBest(), b.graphileBest())...) {
				b.measureDrain(ctx, "million", s, thousands(int64(b.size.million)), drainOf{load: load{events: b.size.million, payload: 200}})
			}
		},
	},
	{
		name: "processes", title: "Several processes", minutes: 1, columns: throughput,
		about: "The drain by several dispatchers at once, on the same cores, one run.",
		run: func(ctx context.Context, b *bench) {
			for _, n := range []int{1, 2, 4} {
				for _, s := range []system{oursKept(), oursDeleted()} {
					b.measureDrain(ctx, "processes", s, fmt.Sprint(n), drainOf{load: load{events: b.size.drain, payload: 200}, processes: n})
				}
			}
		},
	},
	{
		name: "payload", title: "Larger payloads", minutes: 1.5, columns: throughput,
		about: "The drain with payloads that do not compress, one run.",
		run: func(ctx context.Context, b *bench) {
			for _, size := range []int{1 << 10, 16 << 10} {
				for _, s := range append(own(), b.peers(riverBest(), b.graphileBest())...) {
					b.measureDrain(ctx, "payload", s, fmt.Sprintf("%d KiB", size>>10), drainOf{load: load{events: b.size.payloads[size], payload: size}})
				}
			}
		},
	},
	{
		name: "sinks", title: "Into real destinations", minutes: 6, run: runSinks,
		columns: []metric{perSecond, toolRate, dbCPU, clientCPU, brokerCPU, peakMemMiB},
		about: "The drain into a real server on the same machine, each message confirmed; rows kept. In addition what the server's " +
			"own benchmark tool reaches there with bodies of 200 bytes, the same durability and no outbox: our messages have the same " +
			"body, and some 500 bytes of attributes.",
	},
	{
		name: "kafka", title: "A stream into Kafka", minutes: 4, run: runKafka,
		columns: []metric{p50, p99, sendRate, brokerSeconds, clientCPU, dbCPU},
		about: "The dispatcher's binary, all default, by polling: from just before the producer's transaction to the broker's append, " +
			"and what the broker spends meanwhile.",
	},
	{
		name: "outage", title: "An outage of Kafka", minutes: 6, run: runOutage, columns: []metric{firstAfter, allAfter, startTook, lostEvents, doubledEvents},
		about: "The broker is killed while events come, and started again: from its response that the partition has a leader to the first record.",
	},
	{
		name: "debezium", title: "Next to Debezium", minutes: 20, run: runDebezium,
		columns: []metric{perSecond, p50, p99, dbCPU, clientCPU, brokerCPU, walInsert, walWork, peakMemMiB, firstAfter, allAfter, lostEvents, doubledEvents, laterShare, deadEvents},
		about: "Debezium's outbox event router in Kafka Connect, and the dispatcher's binary, into one broker and from one PostgreSQL, with " +
			"wal_level = logical. Producers insert and delete nothing, on both sides. Waits are from just before the producer's transaction to the broker's append. " +
			"The CPU time of an idle broker is taken off. The backlog is committed in transactions of 500 events, before the relay starts " +
			"(cold, and the start counts), or while it is stopped by SIGSTOP after a first half as many (warm). The WAL of the inserts is apart from that of the delivery, but for the stream. " +
			"A missing event has neither a record in the topic nor a dead letter.",
	},
}

// own are our modes and the yardstick.
func own() []system { return []system{oursKept(), rawKept(), oursDeleted(), rawDeleted()} }

// peers leaves out those that cannot run here.
func (b *bench) peers(all ...system) (systems []system) {
	for _, s := range all {
		if s.script == "" || b.node != "" {
			systems = append(systems, s)
		}
	}
	return systems
}

// The cases of the drain.
const (
	caseOne = "1 process"
	caseTwo = "2 processes"
)

// rounds are more than runs, for cells with targets that are ratios and near: on a shared machine one round differs
// from the next by up to a fifth.
func (b *bench) rounds() int {
	if b.runs == 1 {
		return 1
	}
	return 2*b.runs + 1
}

func runDrain(ctx context.Context, b *bench) {
	of := load{events: b.size.drain, payload: 200}
	kept, deleted := yardsticks()
	for range b.rounds() {
		systems := []system{kept, oursKept(), rawKept(), deleted, oursDeleted(), rawDeleted()}
		for _, s := range append(systems, b.peers(riverBest(), b.graphileBest(), b.pgbossBest())...) {
			b.measureDrain(ctx, "drain", s, caseOne, drainOf{load: of})
		}
		for _, s := range append([]system{oursDeleted()}, b.peers(b.graphileBest())...) {
			b.measureDrain(ctx, "drain", s, caseTwo, drainOf{load: of, processes: 2})
		}
	}
}

func rateName(rate float64) string { return fmt.Sprintf("%.0f/s", rate) }

func runLatency(ctx context.Context, b *bench) {
	systems := append([]system{oursPolling(), oursWoken(), rawPolling()}, b.peers(riverDefault(), riverBest(),
		b.graphileDefault(), b.graphileBest(), b.pgbossDefault(), b.pgbossBest())...)
	for i, rate := range b.size.rates {
		runs := b.runs
		if i > 0 {
			runs = 1
		}
		for range runs {
			for _, s := range systems {
				b.measure(ctx, "latency", s, rateName(rate), func() (measure, error) { return b.latency(ctx, s, pace{rate, b.size.pace}) })
			}
		}
	}
}

func runTopics(ctx context.Context, b *bench) {
	for range b.runs {
		b.measure(ctx, "topics", oursPolling(), rateName(b.size.manyRate), func() (measure, error) {
			return b.topics(ctx, oursPolling(), pace{b.size.manyRate, 4 * b.size.pace})
		})
	}
}

// The cases without a backlog.
const (
	caseFresh = "a fresh table"
	caseHeld  = "a held snapshot"
)

func runBacklog(ctx context.Context, b *bench) {
	ours := []system{oursKept(), oursDeleted(), rawKept()}
	of := load{events: b.size.behind, payload: 200}
	for _, s := range ours {
		b.measureDrain(ctx, "backlog", s, caseFresh, drainOf{load: of})
	}
	for _, s := range append(ours, b.peers(riverBest(), b.graphileBest())...) {
		b.measureDrain(ctx, "backlog", s, caseHeld, drainOf{load: of, held: true, limit: time.Minute})
	}
	for _, l := range backlogs {
		b.nextTo(ctx, l, of, ours)
	}
}

// The cases of the cell about keys.
const (
	caseKeys = "many keys"
	caseHot  = "many keys and a hot one"
)

func runKeys(ctx context.Context, b *bench) {
	plain := load{events: b.size.drain, payload: 200, keys: b.size.keys}
	hot := plain // and as many of the hot key
	hot.hot, hot.events = true, 2*plain.events
	for range b.rounds() {
		b.measureDrain(ctx, "keys", oursKept(), caseKeys, drainOf{load: plain})
		b.measureDrain(ctx, "keys", oursKeyed(), caseKeys, drainOf{load: plain})
		b.measureDrain(ctx, "keys", oursKeyed(), caseHot, drainOf{load: hot})
	}
}
