package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// allotted is how much of a topic a claim may take.
func allotted(f *flight, topic string) allotment { return f.get(topic).allot(f.load(time.Now())) }

// beginAll begins deliveries of one row until there are none, and returns how many each topic has.
func beginAll(f *flight, running map[string][]*delivery) {
	for f.running < f.concurrency {
		d := begun(f, 1, time.Now())
		if d == nil {
			return
		}
		running[d.topic.name] = append(running[d.topic.name], d)
	}
}

// A topic leaves an eighth of the calls to those that have none, whoever they are; alone it takes them all.
//
// CONTRACT: C-32
func TestLastCallsAreForOthers(t *testing.T) {
	for concurrency, want := range map[int]int{1: 1, 2: 1, 3: 2, 8: 7, 9: 7, 16: 14, 64: 56} {
		f, running := testFlight(dispatcher.Config{Concurrency: concurrency}, func() {}), map[string][]*delivery{}
		f.add(claimOf("a", 100, 1), time.Now(), 0)
		if beginAll(f, running); len(running["a"]) != want {
			t.Errorf("with %d calls a topic takes %d, want %d", concurrency, len(running["a"]), want)
		}
		f.add(claimOf("b", 100, 1), time.Now(), 0)
		if beginAll(f, running); len(running["b"]) != min(1, concurrency-want) {
			t.Errorf("with %d calls another topic takes %d", concurrency, len(running["b"]))
		}
		f.listTopics([]string{"a"}, 0)
		if beginAll(f, running); len(running["a"])+len(running["b"]) < concurrency {
			t.Errorf("alone a topic takes %d of %d calls", len(running["a"]), concurrency)
		}
	}
}

// A call that becomes free goes to the topic that has the fewest: one whose calls take long does not
// crowd out one whose calls are short.
//
// CONTRACT: C-32
func TestFewestRunningFirst(t *testing.T) {
	f, running := testFlight(dispatcher.Config{Concurrency: 16}, func() {}), map[string][]*delivery{}
	f.add(claimOf("slow", 200, 1), time.Now(), 0)
	beginAll(f, running)
	f.add(claimOf("fast", 200, 1), time.Now(), 0)
	beginAll(f, running)
	for range 14 { // all that the slow topic has end once
		f.finish(running["slow"][0], make([]error, 1))
		running["slow"] = running["slow"][1:]
		beginAll(f, running)
	}
	if slow, fast := len(running["slow"]), len(running["fast"]); fast < 7 || slow+fast < 14 {
		t.Errorf("the slow topic has %d calls and the fast one %d of 16", slow, fast)
	}
	fast := len(running["fast"])
	for range 100 {
		f.finish(running["fast"][0], make([]error, 1))
		running["fast"] = running["fast"][1:]
		beginAll(f, running)
	}
	if len(running["fast"]) < fast {
		t.Errorf("the fast topic had %d calls, and has %d after a hundred deliveries", fast, len(running["fast"]))
	}
}

// Rows that have waited for long count little: others are claimed meanwhile, and of that topic no
// more until it has less than its part. A topic that is alone is claimed from as ever.
//
// CONTRACT: C-32
func TestSlowTopicCountsLittle(t *testing.T) {
	woken := 0
	f := testFlight(dispatcher.Config{Concurrency: 2, BatchSize: 100}, func() { woken++ })
	f.listTopics([]string{"a", "b"}, 0)
	room := func() bool { _, _, ok := f.room(); return ok }
	f.add(claimOf("a", 150, 1), time.Now().Add(-longSupply/2), 0)
	if room() {
		t.Fatal("there is room for a claim while more than a batch waits")
	}
	for _, r := range f.get("a").queued {
		r.claimedAt = r.claimedAt.Add(-longSupply)
	}
	if !room() {
		t.Fatal("rows that have waited for long keep the others from being claimed")
	}
	if a := allotted(f, "a"); a.rows != 0 || a.by != bySlowness || allotted(f, "b").by != unlimited {
		t.Errorf("a gets %+v, and b %+v", a, allotted(f, "b"))
	}
	if shares := limits(f.shares(100, nil)); len(shares) != 1 || shares["b"] == 0 {
		t.Errorf("the shares are %v, want only b's", shares)
	}
	for len(f.get("a").queued) >= f.lowShare() {
		if woken != 0 {
			t.Fatal("the loop was woken before the queue ran low")
		}
		f.written(taken(f, 1).rows)
		f.running = 0
	}
	if woken != 1 || allotted(f, "a").by != unlimited {
		t.Errorf("with the queue low the loop was woken %d times, and a gets %+v", woken, allotted(f, "a"))
	}
	f.add(claimOf("a", 150, 1), time.Now(), 0)
	f.turn = f.turn[:1]
	if room() || allotted(f, "a").by != unlimited {
		t.Error("a topic that is alone is held, or claimed from without end")
	}
}

// When all topics are slow, they together have no more rows than one would, or one of each: another worker may be idle.
// One without a row gets some.
func TestSlowTopicsKeepFew(t *testing.T) {
	f := testFlight(dispatcher.Config{Concurrency: 2}, func() {})
	low, slow := f.lowWater(), time.Now().Add(-2*longSupply)
	f.add(claimOf("topic-0", 2*low, 1), slow, 0)
	for i := 1; i < 2*low; i++ {
		name := fmt.Sprint("topic-", i)
		if _, _, ok := f.room(); !ok || allotted(f, name).by != unlimited {
			t.Fatalf("with rows of %d topics the next one gets %+v, room %v", i, allotted(f, name), ok)
		}
		f.add(claimOf(name, 1, 1), slow, 0)
	}
	f.room()
	for _, topic := range f.waiting {
		if a := topic.allot(f.load(time.Now())); a.by != bySlowness {
			t.Errorf("a topic of %d with %d rows gets %+v", 2*low, len(topic.queued), a)
		}
	}
}

// No topic takes all rows or bytes: it gets no more while it has more than it leaves, and leaves a half
// whatever it is.
//
// CONTRACT: C-32
func TestTopicLeavesRoom(t *testing.T) {
	f := testFlight(dispatcher.Config{Concurrency: 2, BatchSize: 10, MaxBytes: 10 * 101 * rowBytes}, func() {}) // 32 rows
	if _, bytes, _ := f.room(); bytes != 5*101*rowBytes {
		t.Errorf("a claim may take %d bytes, want half of them", bytes)
	}
	f.add(claimOf("large", 5, 100*rowBytes), time.Now(), 0)
	if a := allotted(f, "large"); a.by != unlimited {
		t.Errorf("with half of the bytes it gets %+v", a)
	}
	f.add(claimOf("large", 1, 100*rowBytes), time.Now(), 0)
	f.add(claimOf("many", 13, 1), time.Now(), 0)
	if large, many := allotted(f, "large"), allotted(f, "many"); large.by != byBytes || many.by != unlimited {
		t.Errorf("the topic with most of the bytes gets %+v, the one with many rows %+v", large, many)
	}
	f.add(claimOf("many", 1, 1), time.Now(), 0)
	if many := allotted(f, "many"); many.by != byRows {
		t.Errorf("the one with most of the rows gets %+v", many)
	}
	f.emptyQueues()
	if len(f.byName) != 0 {
		t.Errorf("%d topics are remembered without a row", len(f.byName))
	}
}
