package engine

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/storetest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func rowOf(topic, aggregate, partition string) *row {
	return &row{event: &dispatcher.Event{ID: uuid.New(), Topic: topic, AggregateID: aggregate, PartitionKey: partition}}
}

// CONTRACT: C-50
func TestKeysLetOneRowOfAKeyGo(t *testing.T) {
	k := newKeys(dispatcher.OrderingKey, false)
	a1, a2, a3 := rowOf("t", "a", ""), rowOf("t", "x", "a"), rowOf("t", "a", "")
	for _, test := range []struct {
		row  *row
		want bool
	}{
		{a1, true}, {a2, false}, {a3, false},
		{rowOf("t", "b", ""), true}, {rowOf("u", "a", ""), true}, {rowOf("t", "a", "b2"), true},
		{rowOf("t", "", ""), true}, {rowOf("t", "", ""), true},
	} {
		need.Want(t, test.want, "%+v may be delivered: %v, want %v", k.join(test.row), test.row.event)
	}
	need.Want(t, a2, "after the first comes %v, want the second", k.next(a1))
	need.That(t, k.next(a3) == nil && k.next(a1) == nil, "a row that is not the first let another one go")
	need.Want(t, a3, "after the second comes %v, want the third", k.next(a2))
	got := k.next(a3)
	need.That(t, got == nil && k.join(rowOf("t", "a", "")) == true, "a key whose rows are delivered holds back another row")
	none := newKeys(dispatcher.OrderingNone, false)
	need.That(t, none.join(a1) && none.join(a2), "rows wait without an order")
}

// A row that does not succeed takes those behind it with it, and those before it stay.
// CONTRACT: C-50
func TestKeysStopTakesThoseBehind(t *testing.T) {
	k := newKeys(dispatcher.OrderingKey, false)
	rows := make([]*row, 5)
	for i := range rows {
		rows[i] = rowOf("t", "a", "")
		k.join(rows[i])
	}
	if got := k.leave(rows[3]); !slices.Equal(got, rows[4:]) {
		t.Errorf("behind the fourth were %d rows, want the fifth", len(got))
	}
	if got := k.leave(rows[4]); got != nil {
		t.Errorf("a row that had left was followed by %d", len(got))
	}
	if got := k.stop(rows[0]); !slices.Equal(got, rows[1:3]) {
		t.Errorf("behind the first were %d rows, want the two that are left", len(got))
	}
	again := rowOf("t", "a", "")
	need.That(t, !k.join(again) && k.next(rows[0]) == again, "a new row did not wait for the one that is in delivery")
}

func TestKeysDisbandReturnsWhatWaits(t *testing.T) {
	k := newKeys(dispatcher.OrderingKey, false)
	running, waiting := rowOf("t", "a", ""), rowOf("t", "a", "")
	queued, behind, other := rowOf("t", "b", ""), rowOf("t", "b", ""), rowOf("u", "b", "")
	running.delivery = &delivery{}
	for _, r := range []*row{running, waiting, queued, behind, other, rowOf("u", "b", "")} {
		k.join(r)
	}
	got := k.disband("t")
	need.That(t, len(got) == 2 && slices.Contains(got, waiting) && slices.Contains(got, behind), "%d rows had waited, want 2", len(got))
	need.That(t, k.next(running) == nil && len(k.lines) == 1 && len(k.disband("")) == 1 && len(k.lines) == 0, "lines are left: %v", k)
}

// An event behind an unreadable one of its key waits, and comes again behind it.
//
// CONTRACT: C-50
func TestEventBehindAnUnreadableOneWaits(t *testing.T) {
	f := testFlight(dispatcher.Config{Ordering: dispatcher.OrderingKey}, func() {})
	event := func(seq int64, key string) *dispatcher.Event {
		return &dispatcher.Event{ID: uuid.New(), Topic: "orders", Seq: seq, AggregateID: key}
	}
	refused, unreadable, _ := f.intake().add(dispatcher.Claimed{
		Unreadable: []dispatcher.Unreadable{{Event: event(2, "a"), Err: errContent}},
		Events:     []*dispatcher.Event{event(1, "a"), event(3, "a"), event(4, "b")},
	}, time.Now(), 0)
	need.That(t, len(unreadable) == 1 && len(refused) == 1 && refused[0].event.Seq == 3, "%d rows are refused, want the one behind the unreadable one", len(refused))
}

// What a call did not deliver, since one before it failed, is released with its attempt, and so is what waits behind it. What was
// delivered all the same is not delivered again.
//
// CONTRACT: C-50
func TestRowsBehindAFailedOneOfTheirCallAreReleased(t *testing.T) {
	for name, test := range map[string]struct {
		fails    []int // of the call's rows
		writable string
		returned []int64 // seqs
	}{
		"none":                             {nil, "11111", nil},
		"the last of the key":              {[]int{2}, "11111", []int64{3}},
		"the first, and so those behind":   {[]int{0, 1, 2}, "10011", []int64{1, 2, 3}},
		"the first, and one is delivered":  {[]int{0, 2}, "11011", []int64{2, 3}},
		"one of another key, and its next": {[]int{3, 4}, "11110", []int64{11}},
	} {
		f := testFlight(dispatcher.Config{Ordering: dispatcher.OrderingKey}, func() {})
		f.queue.keys.together = true
		claimed := dispatcher.Claimed{}
		for _, seq := range []int64{0, 1, 2, 3, 10, 11} {
			claimed.Events = append(claimed.Events, &dispatcher.Event{ID: uuid.New(), Topic: "orders", Seq: seq, AggregateID: fmt.Sprint("key-", seq/10)})
		}
		f.intake().add(claimed, time.Now(), 0)
		q := &f.topics.get("orders").queue
		need.That(t, q.ready(9) == 6 && q.ready(5) == 5, "%s: %d rows may be delivered, want all", name, q.ready(9))
		d := begun(f, 3, time.Now())
		other := begun(f, 9, time.Now())
		need.That(t, len(d.rows) == 3 && len(other.rows) == 2 && other.rows[1].event.Behind && !other.rows[0].event.Behind, "%s: calls of %d and %d rows", name, len(d.rows), len(other.rows))
		var seqs []int64
		got := ""
		for _, part := range []struct {
			d    *delivery
			from int
		}{{d, 0}, {other, 3}} {
			errs := make([]error, len(part.d.rows))
			for _, i := range test.fails {
				if i -= part.from; i >= 0 && i < len(errs) {
					errs[i] = errContent
				}
			}
			for _, r := range f.finish(part.d, errs) {
				seqs = append(seqs, r.event.Seq)
			}
			for _, w := range part.d.writable {
				got += map[bool]string{true: "1", false: "0"}[w]
			}
		}
		slices.Sort(seqs)
		need.That(t, got == test.writable && slices.Equal(seqs, test.returned), "%s: writable are %s, and %v are released; want %s and %v", name, got, seqs, test.writable, test.returned)
		next := begun(f, 9, time.Now())
		need.That(t, (next != nil) == (name == "none" || len(test.fails) > 0 && test.fails[0] == 3), "%s: the rest of the key is delivered next: %v", name, next)
	}
}

// Few keys take few claims and few calls where the sink takes batches: a claim has several rows of each, and so has a call, if the
// sink keeps their order.
//
// CONTRACT: C-50
func TestFewKeysTakeFewClaimsAndCalls(t *testing.T) {
	const keys, each = 20, 500
	for name, test := range map[string]struct {
		ordered       bool
		claims, calls int
		by            dispatcher.LimitedBy
	}{
		"a sink that keeps the order": {true, 60, 160, dispatcher.LimitedByOrder},
		"one that does not":           {false, 60, 2 * each, dispatcher.LimitedByOrder},
	} {
		virtual(t, name, func(t *testing.T) {
			store := storetest.NewMemory()
			for i := range keys * each {
				store.AddLike(dispatcher.Event{Topic: "orders", PartitionKey: fmt.Sprint(i % keys)}, 1)
			}
			var claims, calls atomic.Int64
			sink := &ordered{Func: sinktest.Func{Max: 100, Respond: func(context.Context, *dispatcher.Event) error { return nil }}, keeps: test.ordered, calls: &calls}
			d, stop := begin(t, onClaim(store, func() { claims.Add(1); <-time.After(time.Millisecond) }), sink, dispatcher.Config{Topics: []string{"orders"}, Ordering: dispatcher.OrderingKey})
			<-time.After(50 * time.Millisecond) // it is at work
			by := d.Snapshot().LimitedBy
			delivered(t, time.Minute, store, "orders", keys*each)
			n, m := claims.Load(), calls.Load()
			stop()
			need.That(t, n <= int64(test.claims) && m <= int64(test.calls) && by == test.by, "%d events of %d keys took %d claims and %d calls, limited by %s; want %d, %d and %s", keys*each, keys, n, m, by, test.claims, test.calls, test.by)
		})
	}
}

// ordered is a sink whose calls take a millisecond.
type ordered struct {
	sinktest.Func
	keeps bool
	calls *atomic.Int64
}

func (s *ordered) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	s.calls.Add(1)
	<-time.After(time.Millisecond)
	return s.Func.Deliver(ctx, batch)
}

func (s *ordered) KeepsOrder() bool { return s.keeps }

// A key's part of a claim follows what keys deliver, and is never less than the least.
//
// CONTRACT: C-50
func TestPartOfAKeyFollowsItsDeliveries(t *testing.T) {
	now := time.Now()
	for name, test := range map[string]struct {
		joined int
		left   bool
		lasted time.Duration
		want   int
	}{
		"a whole part, soon":      {16, false, shortSupply / 2, 32},
		"less than one, soon":     {15, false, shortSupply / 2, 16},
		"a whole part, in time":   {16, false, longSupply / 2, 16},
		"some are left, soon":     {16, true, longSupply / 2, 16},
		"some are left for long":  {16, true, 2 * longSupply, 8},
		"a whole part, very late": {16, false, 2 * longSupply, 16},
	} {
		c := claims{maxRows: 100, ofKey: 16, leastOfKey: 4}
		c.adaptKey(&line{joined: test.joined, began: now.Add(-test.lasted)}, test.left, now)
		need.Want(t, test.want, "%s: the part is %d, want %d", c.ofKey, name)
		c.ofKey = 5
		c.adaptKey(&line{joined: test.joined, began: now.Add(-2 * longSupply)}, true, now)
		need.Want(t, 4, "%s: the part is %d, want the least", c.ofKey, name)
	}
}

// A lease is measured from before the claim was sent: it begins in the database while the claim is under way.
//
// CONTRACT: C-31
func TestLeaseBeginsBeforeTheClaimResponds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewMemory()
		store.Add("orders", 1)
		late := func(context.Context, storetest.Call) error { <-time.After(8 * time.Second); return nil }
		d := newDispatcher(t, &storetest.Hooked{Store: store, After: late}, &sinktest.Func{}, dispatcher.Config{Topics: []string{"orders"}})
		r, sentAt := newRun(t.Context(), d), time.Now()
		if n, _, err := r.claim(1, 1<<20); n != 1 || err != nil {
			t.Fatalf("claimed %d, %v", n, err)
		}
		got, want := r.flight.account.inFlight[0].safeUntil, safeUntil(sentAt, r.flight.lease)
		need.That(t, got.Equal(want), "the lease is relied on for %v from when the claim was sent, want %v", got.Sub(sentAt), want.Sub(sentAt))
	})
}

// A batch ends before the first row whose lease is in doubt.
//
// CONTRACT: C-31
func TestBatchEndsBeforeALeaseInDoubt(t *testing.T) {
	f := testFlight(dispatcher.Config{}, func() {})
	f.intake().add(claimOf("orders", 3, 1), time.Now(), 0)
	f.topics.get("orders").queue.rows[2].safeUntil = time.Now()
	d := begun(f, 3, time.Now())
	need.Want(t, 2, "the batch has %d rows, want the 2 before the one whose lease is in doubt", len(d.rows))
}

// What a stuck call keeps counts in its topic's share.
//
// CONTRACT: C-34, C-35
func TestStuckBytesCountInTheTopicsShare(t *testing.T) {
	f := testFlight(dispatcher.Config{Concurrency: 4, MaxBytes: 10 * 101 * rowBytes}, func() {})
	f.intake().add(claimOf("hangs", 6, 100*rowBytes), time.Now(), 0)
	for range 3 {
		begun(f, 2, time.Now())
	}
	long := time.Now().Add(time.Hour)
	f.leases().cutOverdue(long, time.Minute)
	stuck, _ := f.leases().cutOverdue(long, time.Minute)
	for _, a := range stuck {
		f.written(a.rows)
	}
	if a := allotted(f, "hangs"); len(stuck) != 3 || a.by != byBytes || allotted(f, "well").by != unlimited {
		t.Errorf("with %d stuck calls that keep most of the bytes their topic gets %+v", len(stuck), a)
	}
	var s dispatcher.Snapshot
	f.controls().snapshot(&s)
	need.That(t, !s.NoRoom && s.StuckCalls == 3, "%d calls are stuck, and they leave no room: %t", s.StuckCalls, s.NoRoom)
	f.account.maxBytes = 6 * 101 * rowBytes
	f.controls().snapshot(&s)
	need.That(t, s.NoRoom, "stuck calls keep all bytes, and there is said to be room")

	f = testFlight(dispatcher.Config{Concurrency: 4}, func() {})
	f.intake().add(claimOf("hangs", 1, 1), time.Now(), 0)
	d := begun(f, 1, time.Now())
	f.leases().extended(d.rows, leasesOf(d.rows), time.Now())
	f.leases().cutOverdue(long, time.Minute)
	stuck, _ = f.leases().cutOverdue(long, time.Minute)
	need.Want(t, 0, "%d calls have rows to be written back, and another worker has them", len(stuck))
}

// An event takes its payload, its headers, and what the engine keeps of it.
//
// CONTRACT: C-35
func TestSizeOfAnEventCountsPayloadAndHeaders(t *testing.T) {
	e := &dispatcher.Event{Payload: make([]byte, 1000), Headers: map[string]string{"abc": "defgh"}}
	got, want := sizeOf(e), int64(rowBytes+1000+3+5)
	need.Want(t, want, "the event takes %d bytes, want %d", got)
}

// A claim that took too long is tried with half of its rows and bytes.
//
// CONTRACT: C-35
func TestShrinkHalvesRowsAndBytes(t *testing.T) {
	f := testFlight(dispatcher.Config{Topics: []string{"a"}}, func() {})
	rows, bytes, _ := f.intake().room()
	f.claims.shrink(f.account.maxBytes - f.account.spare() - f.account.bytes)
	if r, b, _ := f.intake().room(); r != rows/2 || b != bytes/2 {
		t.Errorf("after %d rows and %d bytes the next claim is for %d and %d", rows, bytes, r, b)
	}
	f.intake().add(dispatcher.Claimed{}, time.Now(), 0)
	if _, b, _ := f.intake().room(); b != bytes {
		t.Errorf("after a claim that succeeded the next is for %d bytes, want %d", b, bytes)
	}
}

// A call that was cancelled says nothing of the destination.
//
// CONTRACT: C-32
func TestCallThatWasCutPausesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t)
		for range 3 * unreachableRun {
			w.tries("orders", 0, errUnreachable, context.Canceled)
			w.tries("orders", 0, errContent, context.Canceled)
			<-time.After(time.Second)
		}
		need.That(t, !w.paused("orders"), "calls that were cancelled have paused the topic")
	})
}

// A success ends what is remembered of an event's failures.
func TestSuccessClearsAFault(t *testing.T) {
	f := faults{}
	id := uuid.New()
	f.note(id, errFault, fault{at: time.Now(), maxBatch: 3})
	if n := f[id].maxBatch; n != 3 {
		t.Fatalf("after a failure the event comes with at most %d others, want 3", n)
	}
	f.note(id, nil, fault{})
	need.Want(t, 0, "after its success %d events are remembered", len(f))
}

// Rows of a topic that was paused while the claim was under way are given back.
//
// CONTRACT: C-32
func TestRowsOfATopicThatWasPausedDuringTheClaimAreRefused(t *testing.T) {
	f := testFlight(dispatcher.Config{Topics: []string{"a", "b"}}, func() {})
	f.intake().request(100, nil)
	f.topics.get("a").breaker.state = dispatcher.BreakerUnreachable
	f.topics.get("b").breaker.open(dispatcher.BreakerRefusing, time.Now())
	f.topics.get("b").turn.halfOpen = true // the claim is its half-open probe
	c := claimOf("a", 3, 1)
	c.Events = append(c.Events, claimOf("b", 2, 1).Events...)
	if refused, _, _ := f.intake().add(c, time.Now(), 0); len(refused) != 3 || f.topics.get("b").rows.all != 2 {
		t.Errorf("%d rows are refused, and %d of the half-open probe are there; want 3 and 2", len(refused), f.topics.get("b").rows.all)
	}
}

// A topic is paused, whatever is known of the half-open probe that is under way.
//
// CONTRACT: C-32
func TestTopicIsPausedDuringItsHalfOpenProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t)
		w.tries("orders", 0, nil, nil)
		for range unreachableRun {
			w.tries("orders", 0, errUnreachable, nil)
		}
		orders := w.topic("orders")
		orders.turn.halfOpen = true
		_, flow := w.flight.called(call{orders, time.Now(), 0, nil}, nil, nil, nil)
		need.That(t, w.paused("orders") && flow.paused && !flow.delivering(), "the topic is said to deliver during its half-open probe: %+v", flow)
		_, err := w.flight.intake().claimFailed([]dispatcher.Share{{Topic: "orders", Limit: 5}}, errUnreachable)
		need.That(t, err != nil && !orders.turn.halfOpen, "a claim that failed leaves the topic in its half-open probe, %v", err)
	})
}

// The claim loop waits for nothing in flight while no topic has its share.
func TestNothingIsAwaitedWithoutAFullTopic(t *testing.T) {
	f := testFlight(dispatcher.Config{Topics: []string{"a", "b"}}, func() {})
	f.intake().request(10, nil)
	need.That(t, f.signals.awaited == nil, "each delivery looks whether a topic may have more, and none is full")
}

// Calls that never return, with payloads of 3 MiB, take their own topic's share: the other topic is delivered.
//
// CONTRACT: C-33, C-34
func TestStuckCallsWithLargePayloadsStopNoOtherTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, release := storetest.NewMemory(), make(chan struct{})
		store.PayloadBytes = 3 << 20
		store.Add("hangs", 100)
		sink := &sinktest.Func{Respond: func(_ context.Context, e *dispatcher.Event) error {
			if e.Topic == "hangs" {
				<-release
			}
			return nil
		}}
		d, stop := begin(t, store, sink, dispatcher.Config{})
		for round := range 5 {
			store.Add("well", 50)
			delivered(t, time.Minute, store, "well", 50*(round+1))
			<-time.After(6 * time.Minute)
		}
		s := d.Snapshot()
		need.That(t, s.StuckCalls >= 8, "%d calls are stuck, want most of what the memory allows", s.StuckCalls)
		close(release)
		stop()
	})
}

// allotted is how much of a topic a claim may take.
func allotted(f *flight, topic string) allotment {
	return f.topics.get(topic).allot(f.intake().load(time.Now()))
}

// beginAll begins deliveries of one row until there are none, and returns how many each topic has.
func beginAll(f *flight, running map[string][]*delivery) {
	for f.calls.running < f.calls.bound {
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
		f.intake().add(claimOf("a", 100, 1), time.Now(), 0)
		if beginAll(f, running); len(running["a"]) != want {
			t.Errorf("with %d calls a topic takes %d, want %d", concurrency, len(running["a"]), want)
		}
		f.intake().add(claimOf("b", 100, 1), time.Now(), 0)
		if beginAll(f, running); len(running["b"]) != min(1, concurrency-want) {
			t.Errorf("with %d calls another topic takes %d", concurrency, len(running["b"]))
		}
		f.intake().listTopics([]string{"a"}, 0)
		if beginAll(f, running); len(running["a"])+len(running["b"]) < concurrency {
			t.Errorf("alone a topic takes %d of %d calls", len(running["a"]), concurrency)
		}
	}
}

// Rows that have waited for long count little: others are claimed meanwhile, and of that topic no
// more until it has less than its part. A topic that is alone is claimed from as ever.
//
// CONTRACT: C-32
func TestSlowTopicCountsLittle(t *testing.T) {
	woken := 0
	f := testFlight(dispatcher.Config{Concurrency: 2, BatchSize: 100}, func() { woken++ })
	f.intake().listTopics([]string{"a", "b"}, 0)
	room := func() bool { _, _, ok := f.intake().room(); return ok }
	f.intake().add(claimOf("a", 150, 1), time.Now().Add(-longSupply/2), 0)
	if room() {
		t.Fatal("there is room for a claim while more than a batch waits")
	}
	for _, r := range f.topics.get("a").queue.rows {
		r.claimedAt = r.claimedAt.Add(-longSupply)
	}
	if !room() {
		t.Fatal("rows that have waited for long keep the others from being claimed")
	}
	if a := allotted(f, "a"); a.n != 0 || a.by != bySlowness || allotted(f, "b").by != unlimited {
		t.Errorf("a gets %+v, and b %+v", a, allotted(f, "b"))
	}
	claim, _ := f.intake().request(100, nil)
	shares := limits(claim.Shares)
	need.That(t, len(shares) == 1 && shares["b"] != 0, "the shares are %v, want only b's", shares)
	for len(f.topics.get("a").queue.rows) >= f.intake().lowShare() {
		if woken != 0 {
			t.Fatal("the loop was woken before the queue ran low")
		}
		f.written(taken(f, 1).rows)
		f.calls.running = 0
	}
	if woken != 1 || allotted(f, "a").by != unlimited {
		t.Errorf("with the queue low the loop was woken %d times, and a gets %+v", woken, allotted(f, "a"))
	}
	f.intake().add(claimOf("a", 150, 1), time.Now(), 0)
	f.topics.round.topics = f.topics.round.topics[:1]
	need.That(t, !room() && allotted(f, "a").by == unlimited, "a topic that is alone is held, or claimed from without end")
}

// When all topics are slow, they together have no more rows than one would, or one of each: another worker may be idle.
// One without a row gets some.
func TestSlowTopicsKeepFewRows(t *testing.T) {
	f := testFlight(dispatcher.Config{Concurrency: 2}, func() {})
	low, slow := f.claims.lowWater(), time.Now().Add(-2*longSupply)
	f.intake().add(claimOf("topic-0", 2*low, 1), slow, 0)
	for i := 1; i < 2*low; i++ {
		name := fmt.Sprint("topic-", i)
		if _, _, ok := f.intake().room(); !ok || allotted(f, name).by != unlimited {
			t.Fatalf("with rows of %d topics the next one gets %+v, room %v", i, allotted(f, name), ok)
		}
		f.intake().add(claimOf(name, 1, 1), slow, 0)
	}
	f.intake().room()
	for _, topic := range f.queue.waiting {
		if a := topic.allot(f.intake().load(time.Now())); a.by != bySlowness {
			t.Errorf("a topic of %d with %d rows gets %+v", 2*low, len(topic.queue.rows), a)
		}
	}
}

// No topic takes all rows or bytes: it gets no more while it has more than it leaves but for an eighth, and leaves a half
// whatever it is.
//
// CONTRACT: C-32
func TestTopicLeavesRoomForOthers(t *testing.T) {
	f := testFlight(dispatcher.Config{Concurrency: 2, BatchSize: 10, MaxBytes: 10 * 101 * rowBytes}, func() {}) // 32 rows
	_, bytes, _ := f.intake().room()
	need.Want(t, 5*101*rowBytes, "a claim may take %d bytes, want half of them", bytes)
	f.intake().add(claimOf("large", 4, 100*rowBytes), time.Now(), 0)
	a := allotted(f, "large")
	need.That(t, a.by == unlimited, "with four tenths of the bytes it gets %+v", a)
	f.intake().add(claimOf("large", 1, 100*rowBytes), time.Now(), 0)
	f.intake().add(claimOf("many", 13, 1), time.Now(), 0)
	if large, many := allotted(f, "large"), allotted(f, "many"); large.by != byBytes || many.by != unlimited {
		t.Errorf("the topic with most of the bytes gets %+v, the one with many rows %+v", large, many)
	}
	f.intake().add(claimOf("many", 1, 1), time.Now(), 0)
	if many := allotted(f, "many"); many.by != byRows {
		t.Errorf("the one with most of the rows gets %+v", many)
	}
	f.takeBack(nil)
	need.Want(t, 0, "%d topics are remembered without a row", len(f.topics.byName))
}
