package main

import (
	"fmt"
	"strings"
)

// verdict is one line of the acceptance table.
type verdict struct {
	Item     string `json:"item"`
	Target   string `json:"target"`
	Measured string `json:"measured"`
	// State is met, NOT met, or not measured.
	State string `json:"state"`
}

// criterion is one thing that must hold. check returns what was measured and whether it is enough; ok is
// false when rows are missing.
type criterion struct {
	item, target string
	check        check
}

// criteria are the targets that the project has set itself.
var criteria = []criterion{
	{"Drain, rows kept", "at least 4 × River", drains(oursKept, "River", caseOne, 4)},
	{"Drain, rows kept", "at least 1.8 × Graphile Worker in 2 processes, which deletes", drains(oursKept, graphile, caseTwo, 1.8)},
	{"Drain, delete at ack", "at least 2.5 × Graphile Worker, each in one or two processes as is best for it", bestToGraphiles},
	{"Drain, rows kept", "at least 80 % of raw SQL", drains(oursKept, rawKept().Name, caseOne, 0.8)},
	{"Drain, delete at ack", "at least 80 % of raw SQL", drains(oursDeleted, rawDeleted().Name, caseOne, 0.8)},
	{"Drain, rows kept", "at least 80 % of raw SQL with claims of 500, as it was measured for this target", drains(oursKept, yardstickKept, caseOne, 0.8)},
	{"Drain, delete at ack", "at least 80 % of raw SQL with claims of 500, as it was measured for this target", drains(oursDeleted, yardstickDeleted, caseOne, 0.8)},

	{"Latency at 500/s, polling", "p50 at most 3 ms", atMost("latency", oursPolling, "500/s", p50, 3)},
	{"Latency at 500/s, polling", "p99 at most 8 ms", atMost("latency", oursPolling, "500/s", p99, 8)},
	{"Latency at 500/s, polling", "p50 and p99 ahead of every peer's default", aheadOf(oursPolling, "River, default", "Graphile Worker, default", "pg-boss, default")},
	{"Latency at 500/s, polling", "p50 and p99 ahead of the defaults that wait, too", aheadOf(oursPolling, "River, default", "pg-boss, default")},
	{"Latency at 500/s, wake-up", "p50 and p99 ahead of every peer's default, without a NOTIFY in the producer's transaction",
		aheadOf(oursWoken, "River, default", "Graphile Worker, default", "pg-boss, default")},
	{"Latency at 500/s, wake-up", "p50 and p99 ahead of River's best", aheadOf(oursWoken, "River")},

	{"Claim under a held snapshot", "at most 1.5 × the fresh table's buffers", nextTo(caseHeld)},
	{"Claim next to rows not yet due", "at most 1.5 × the fresh table's buffers", nextTo(backlogs[0].name)},
	{"Claim next to delivered rows", "at most 1.5 × the fresh table's buffers", nextTo(backlogs[1].name)},
	{"Claim next to another topic's rows", "at most 1.5 × the fresh table's buffers", nextTo(backlogs[2].name)},
	{"Latency while retention removes rows", "p99 at most 1.2 × of while they stay", whileRemoving},
	{"100 topics of unequal load", "each topic's p99 at most 2 × the median topic's", evenTopics},

	{"WAL, claim and ack, kept", "at most 450 B/event", atMost("drain", oursKept, caseOne, walWork, 450)},
	{"WAL, claim and ack, deleted", "at most 300 B/event", atMost("drain", oursDeleted, caseOne, walWork, 300)},
	{"WAL with the insert, kept", "at most 1,050 B/event", withInsert(oursKept, 1050)},
	{"WAL with the insert, deleted", "at most 900 B/event", withInsert(oursDeleted, 900)},

	{"Memory at full speed, kept", "at most 64 MiB", peakAtMost(binaryKept, caseSmall, 64)},
	{"Memory at full speed, deleted", "at most 64 MiB", peakAtMost(binaryDeleted, caseSmall, 64)},
	{"Memory with payloads of 1 MiB", "at most 256 MiB", peakAtMost(binaryDefault, caseLarge, 256)},

	{"EnqueueBatch, 500 in a transaction", "at most 3 × a plain INSERT's", dearerThanPlain(caseBatch, 3)},
	{"Enqueue, one in a transaction", "at most 1.2 × a plain INSERT's", dearerThanPlain(caseSingle, 1.2)},

	{"Ordering Key", "at least 60 % of without order", ratio("keys", perSecond, oursKeyed, caseKeys, oursKept().Name, caseKeys, 0.6)},
	{"Ordering Key with a hot key", "the other keys keep at least 80 %", ratio("keys", othersRate, oursKeyed, caseHot, oursKeyed().Name, caseKeys, 0.8)},
	{"Ordering Key", "no inversion", atMost("keys", oursKeyed, caseHot, inversions, 0)},

	{"Idle dispatcher", "at most 0.5 % of a core", idleAtMost(clientLoad, 0.5)},
	{"Idle dispatcher", "at most 2 statements/s", idleAtMost(callRate, 2)},

	{"A stream of 500/s into Kafka, polling", "p50 at most 10 ms", binaryAtMost("kafka", "500/s", p50, 10)},
	{"A stream of 500/s into Kafka, polling", "p99 at most 40 ms", binaryAtMost("kafka", "500/s", p99, 40)},
	{"After an outage of Kafka", "the first record at most 3 s after the broker responds", binaryAtMost("outage", "", firstAfter, 3)},
	{"Next to Debezium, 500/s into Kafka", "p50 and p99 ahead of tuned Debezium's", aheadIn("debezium", binaryDefault, debeziumTuned)},
	{"Next to Debezium, 500/s into Kafka", "the broker's CPU time at most with tuned Debezium", brokerNextTo(debeziumTuned)},
	{"Next to Debezium, drain into Kafka", "at least 1.5 × tuned Debezium's, both warm", drainNextTo(debeziumTuned)},
	{"Into Kafka", "at least 20,000/s", sinkReaches(kafkaDestination())},
	{"Into NATS JetStream, file storage", "at least 20,000/s", sinkReaches(natsDestination())},
	{"Into Redis", "at least 25,000/s", sinkReaches(redisDestination())},
	{"Into RabbitMQ, a quorum queue", "at least 12,000/s", sinkReaches(rabbitmqDestination(quorum))},
	{"Into RabbitMQ, a durable classic queue", "at least 12,000/s", sinkReaches(rabbitmqDestination(classic))},
	{"Into HTTP, one event in a request", "at least 6,000/s", sinkReaches(httpSingle())},
	{"Into HTTP, batches of 100", "at least 20,000/s", sinkReaches(httpBatch())},
}

const (
	graphile         = "Graphile Worker"
	yardstickKept    = "raw SQL, rows kept, claims of 500"
	yardstickDeleted = "raw SQL, deleted, claims of 500"
)

// judge holds the results against the criteria.
func judge(r *results) []verdict {
	var all []verdict
	for _, c := range criteria {
		v := verdict{Item: c.item, Target: c.target, Measured: "–", State: "not measured"}
		if measured, met, ok := c.check(r); ok {
			v.Measured, v.State = measured, "NOT met"
			if met {
				v.State = "met"
			}
		}
		all = append(all, v)
	}
	return all
}

type check = func(r *results) (measured string, met, ok bool)

// compare says how our row stands to another one, round by round: the machine's speed changes within minutes.
func compare(m metric, ours, other *row, factor float64) (measured string, met, ok bool) {
	if ours == nil || other == nil || other.Median[m] == 0 {
		return "", false, false
	}
	got := ours.to(other, m)
	return fmt.Sprintf("%s to %s: %.2f ×", m.text(ours.Median[m]), m.text(other.Median[m]), got), got >= factor, true
}

func ratio(cell string, m metric, s func() system, c, other, otherCase string, factor float64) check {
	return func(r *results) (string, bool, bool) {
		return compare(m, r.find(cell, s().Name, c), r.find(cell, other, otherCase), factor)
	}
}

func drains(s func() system, other, otherCase string, factor float64) check {
	return ratio("drain", perSecond, s, caseOne, other, otherCase, factor)
}

func bestToGraphiles(r *results) (string, bool, bool) {
	best := func(system string) *row {
		one, two := r.find("drain", system, caseOne), r.find("drain", system, caseTwo)
		if one == nil || two != nil && two.Median[perSecond] > one.Median[perSecond] {
			return two
		}
		return one
	}
	return compare(perSecond, best(oursDeleted().Name), best(graphile), 2.5)
}

// atMost is about one row; an empty case means the only one.
func atMost(cell string, s func() system, c string, m metric, limit float64) check {
	return func(r *results) (string, bool, bool) { return below(r.find(cell, s().Name, c), m, limit) }
}

// binaryAtMost is atMost of the dispatcher's binary.
func binaryAtMost(cell, c string, m metric, limit float64) check {
	return func(r *results) (string, bool, bool) { return below(r.find(cell, binaryDefault, c), m, limit) }
}

func below(row *row, m metric, limit float64) (string, bool, bool) {
	if row == nil {
		return "", false, false
	}
	v, ok := row.Median[m]
	return m.text(v), v <= limit, ok
}

func sinkReaches(d destination) check {
	return func(r *results) (string, bool, bool) {
		row := r.find("sinks", d.name, "")
		if row == nil {
			return "", false, false
		}
		measured := perSecond.text(row.Median[perSecond]) + "/s"
		if tool, ok := row.Median[toolRate]; ok {
			measured += "; its own tool " + toolRate.text(tool) + "/s"
		}
		return measured, row.Median[perSecond] >= d.target, true
	}
}

func idleAtMost(m metric, limit float64) check {
	return func(r *results) (string, bool, bool) { return below(r.find("idle", binaryDefault, ""), m, limit) }
}

func peakAtMost(name, c string, limit float64) check {
	return func(r *results) (string, bool, bool) { return below(r.find("memory", name, c), peakMemMiB, limit) }
}

func withInsert(s func() system, limit float64) check {
	return func(r *results) (string, bool, bool) {
		row := r.find("drain", s().Name, caseOne)
		if row == nil {
			return "", false, false
		}
		v := row.Median[walInsert] + row.Median[walWork]
		return fmt.Sprintf("%s + %s = %s", walInsert.text(row.Median[walInsert]), walWork.text(row.Median[walWork]), walWork.text(v)), v <= limit, true
	}
}

// brokerNextTo and drainNextTo compare the dispatcher by default with a system of the cell debezium.
func brokerNextTo(other string) check {
	return func(r *results) (string, bool, bool) {
		return compare(brokerCPU, r.find("debezium", other, "500/s"), r.find("debezium", binaryDefault, "500/s"), 1)
	}
}

func drainNextTo(other string) check {
	return func(r *results) (string, bool, bool) {
		return compare(perSecond, r.find("debezium", binaryDefault, caseWarmDrain), r.find("debezium", other, caseWarmDrain), 1.5)
	}
}

// aheadOf is aheadIn of the cell about latency.
func aheadOf(s func() system, others ...string) check { return aheadIn("latency", s().Name, others...) }

// aheadIn compares p50 and p99 at 500 events a second with each of the others'.
func aheadIn(cell, system string, others ...string) check {
	return func(r *results) (string, bool, bool) {
		ours := r.find(cell, system, "500/s")
		if ours == nil {
			return "", false, false
		}
		parts := []string{fmt.Sprintf("%s / %s", p50.text(ours.Median[p50]), p99.text(ours.Median[p99]))}
		met := true
		for _, name := range others {
			other := r.find(cell, name, "500/s")
			if other == nil {
				continue
			}
			met = met && ours.Median[p50] < other.Median[p50] && ours.Median[p99] < other.Median[p99]
			parts = append(parts, fmt.Sprintf("%s %s / %s", name, p50.text(other.Median[p50]), p99.text(other.Median[p99])))
		}
		return strings.Join(parts, "; ") + " ms", met, len(parts) > 1
	}
}

// nextTo compares the buffers of a claim, in the worse of our modes, with those on a fresh table.
func nextTo(c string) check {
	return func(r *results) (measured string, met, ok bool) {
		met = true
		for _, s := range []system{oursKept(), oursDeleted()} {
			fresh, there := r.find("backlog", s.Name, caseFresh), r.find("backlog", s.Name, c)
			if fresh == nil || there == nil {
				return "", false, false
			}
			got := there.Median[claimBuffers] / fresh.Median[claimBuffers]
			met = met && got <= 1.5
			measured += fmt.Sprintf("%s: %.2f × (%s ms to %s ms a claim of 500); ", s.Name, got,
				claimMillis.text(there.Median[claimMillis]), claimMillis.text(fresh.Median[claimMillis]))
		}
		return strings.TrimSuffix(measured, "; "), met, true
	}
}

// whileRemoving compares the waits, round by round.
func whileRemoving(r *results) (string, bool, bool) {
	return compare(p99, r.find("retention", oursPolling().Name, caseStay), r.find("retention", oursPolling().Name, caseRemoved), 1/1.2)
}

func evenTopics(r *results) (string, bool, bool) {
	row := r.find("topics", oursPolling().Name, "")
	if row == nil {
		return "", false, false
	}
	worst, median := row.Median[worstTopic], row.Median[medianTopic]
	return fmt.Sprintf("%s ms to %s ms: %.2f ×", worstTopic.text(worst), medianTopic.text(median), worst/median), worst <= 2*median, true
}

// acceptanceTable writes the verdicts as Markdown.
func acceptanceTable(all []verdict) string {
	var text strings.Builder
	text.WriteString("| what | target | measured | |\n|---|---|---|---|\n")
	for _, v := range all {
		fmt.Fprintf(&text, "| %s | %s | %s | %s |\n", v.Item, v.Target, v.Measured, v.State)
	}
	return text.String()
}
