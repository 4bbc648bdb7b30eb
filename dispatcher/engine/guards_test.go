package engine

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// An event behind an unreadable one of its key waits, and comes again behind it.
//
// CONTRACT: C-50
func TestEventBehindAnUnreadableOneWaits(t *testing.T) {
	f := testFlight(dispatcher.Config{Ordering: dispatcher.OrderingKey}, func() {})
	event := func(seq int64, key string) *dispatcher.Event {
		return &dispatcher.Event{ID: uuid.New(), Topic: "orders", Seq: seq, AggregateID: key}
	}
	refused, unreadable, _ := f.add(dispatcher.Claimed{
		Unreadable: []dispatcher.Unreadable{{Event: event(2, "a"), Err: errContent}},
		Events:     []*dispatcher.Event{event(1, "a"), event(3, "a"), event(4, "b")},
	}, time.Now(), 0)
	if len(unreadable) != 1 || len(refused) != 1 || refused[0].event.Seq != 3 {
		t.Errorf("%d rows are refused, want the one behind the unreadable one", len(refused))
	}
}

// slowClaims is a store whose claims take long to respond after they have leased.
type slowClaims struct {
	*memory
	takes time.Duration
}

func (s slowClaims) Claim(ctx context.Context, req dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	out, err := s.memory.Claim(ctx, req)
	<-time.After(s.takes)
	return out, err
}

// A lease is measured from before the claim was sent: it begins in the database while the claim is under way.
//
// CONTRACT: C-31
func TestLeaseBeginsBeforeTheClaimResponds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := slowClaims{newMemory(), 8 * time.Second}
		store.enqueue("orders", 1)
		d, err := New(store, &stubSink{}, dispatcher.Config{Topics: []string{"orders"}, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		r, sentAt := newRun(t.Context(), d), time.Now()
		if n, _, err := r.claim(1, 1<<20); n != 1 || err != nil {
			t.Fatalf("claimed %d, %v", n, err)
		}
		if got, want := r.flight.inFlight[0].safeUntil, r.flight.safeUntil(sentAt); !got.Equal(want) {
			t.Errorf("the lease is relied on for %v from when the claim was sent, want %v", got.Sub(sentAt), want.Sub(sentAt))
		}
	})
}

// A batch ends before the first row whose lease is in doubt.
//
// CONTRACT: C-31
func TestBatchEndsBeforeALeaseInDoubt(t *testing.T) {
	f := testFlight(dispatcher.Config{}, func() {})
	f.add(claimOf("orders", 3, 1), time.Now(), 0)
	f.get("orders").queued[2].safeUntil = time.Now()
	if d := begun(f, 3, time.Now()); len(d.rows) != 2 {
		t.Errorf("the batch has %d rows, want the 2 before the one whose lease is in doubt", len(d.rows))
	}
}

// What a stuck call keeps counts in its topic's share.
//
// CONTRACT: C-34, C-35
func TestStuckBytesCountInTheTopicsShare(t *testing.T) {
	f := testFlight(dispatcher.Config{Concurrency: 4, MaxBytes: 10 * 101 * rowBytes}, func() {})
	f.add(claimOf("hangs", 6, 100*rowBytes), time.Now(), 0)
	for range 3 {
		begun(f, 2, time.Now())
	}
	long := time.Now().Add(time.Hour)
	f.cutOverdue(long, time.Minute)
	stuck, _ := f.cutOverdue(long, time.Minute)
	for _, a := range stuck {
		f.written(a.rows)
	}
	if a := allotted(f, "hangs"); len(stuck) != 3 || a.by != byBytes || allotted(f, "well").by != unlimited {
		t.Errorf("with %d stuck calls that keep most of the bytes their topic gets %+v", len(stuck), a)
	}
	var s dispatcher.Snapshot
	if f.snapshot(&s); s.NoRoom || s.StuckCalls != 3 {
		t.Errorf("%d calls are stuck, and they leave no room: %t", s.StuckCalls, s.NoRoom)
	}
	f.maxBytes = 6 * 101 * rowBytes
	if f.snapshot(&s); !s.NoRoom {
		t.Error("stuck calls keep all bytes, and there is said to be room")
	}
}

// An event takes its payload, its headers, and what the engine keeps of it.
//
// CONTRACT: C-35
func TestSizeOfAnEvent(t *testing.T) {
	e := &dispatcher.Event{Payload: make([]byte, 1000), Headers: map[string]string{"abc": "defgh"}}
	if got, want := sizeOf(e), int64(rowBytes+1000+3+5); got != want {
		t.Errorf("the event takes %d bytes, want %d", got, want)
	}
}

// A claim that took too long is tried with half of its rows and bytes.
//
// CONTRACT: C-35
func TestShrinkHalvesRowsAndBytes(t *testing.T) {
	f := testFlight(dispatcher.Config{Topics: []string{"a"}}, func() {})
	rows, bytes, _ := f.room()
	f.shrink()
	if r, b, _ := f.room(); r != rows/2 || b != bytes/2 {
		t.Errorf("after %d rows and %d bytes the next claim is for %d and %d", rows, bytes, r, b)
	}
	f.add(dispatcher.Claimed{}, time.Now(), 0)
	if _, b, _ := f.room(); b != bytes {
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
		if w.paused("orders") {
			t.Error("calls that were cancelled have paused the topic")
		}
	})
}

// A success ends what is remembered of an event's failures.
func TestSuccessClearsAFault(t *testing.T) {
	var f faults
	id := uuid.New()
	f.note(id, errFault, fault{at: time.Now(), most: 3})
	if n := f.most(id); n != 3 {
		t.Fatalf("after a failure the event comes with at most %d others, want 3", n)
	}
	if f.note(id, nil, fault{}); len(f.events) != 0 {
		t.Errorf("after its success %d events are remembered", len(f.events))
	}
}

// Rows of a topic that was paused while the claim was under way are given back.
//
// CONTRACT: C-32
func TestRowsOfATopicThatWasPausedDuringTheClaimAreRefused(t *testing.T) {
	f := testFlight(dispatcher.Config{Topics: []string{"a", "b"}}, func() {})
	f.shares(100, nil)
	f.get("a").state = dispatcher.BreakerUnreachable
	f.get("b").state, f.get("b").halfOpen = dispatcher.BreakerRefusing, true // the claim is its half-open probe
	c := claimOf("a", 3, 1)
	c.Events = append(c.Events, claimOf("b", 2, 1).Events...)
	if refused, _, _ := f.add(c, time.Now(), 0); len(refused) != 3 || f.get("b").count != 2 {
		t.Errorf("%d rows are refused, and %d of the half-open probe are there; want 3 and 2", len(refused), f.get("b").count)
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
		orders.halfOpen = true
		_, flow := w.flight.called(call{orders, time.Now(), 0, nil}, nil, nil, nil)
		if !w.paused("orders") || !flow.paused || flow.delivering() {
			t.Errorf("the topic is said to deliver during its half-open probe: %+v", flow)
		}
		if err := w.flight.claimFailed([]dispatcher.Share{{Topic: "orders", Limit: 5}}, errUnreachable); err == nil || orders.halfOpen {
			t.Errorf("a claim that failed leaves the topic in its half-open probe, %v", err)
		}
	})
}

// The claim loop waits for nothing in flight while no topic has its share.
func TestNothingIsAwaitedWithoutAFullTopic(t *testing.T) {
	f := testFlight(dispatcher.Config{Topics: []string{"a", "b"}}, func() {})
	if f.shares(10, nil); f.awaits != nil {
		t.Error("each delivery looks whether a topic may have more, and none is full")
	}
}

// Calls that never return, with payloads of 3 MiB, take their own topic's share: the other topic is delivered.
//
// CONTRACT: C-33, C-34
func TestStuckCallsWithLargePayloadsStopNoOtherTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, release := newMemory(), make(chan struct{})
		store.payload = 3 << 20
		store.enqueue("hangs", 100)
		sink := &stubSink{deliver: func(_ context.Context, e *dispatcher.Event) error {
			if e.Topic == "hangs" {
				<-release
			}
			return nil
		}}
		d, stop := begin(t, store, sink, dispatcher.Config{})
		for round := range 5 {
			store.enqueue("well", 50)
			passes(t, time.Minute, "the other topic is delivered", func() bool { return store.count("well", "delivered") == 50*(round+1) })
			<-time.After(6 * time.Minute)
		}
		if s := d.Snapshot(); s.StuckCalls < 8 {
			t.Errorf("%d calls are stuck, want most of what the memory allows", s.StuckCalls)
		}
		close(release)
		stop()
	})
}
