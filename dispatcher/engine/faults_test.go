package engine

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// A destination's fault is the event's own doing when others of its topic were delivered since it was claimed,
// or since it failed before that.
// CONTRACT: C-32
func TestFaultIsTheEventsOwnWhenOthersAreDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t)
		claim := func() *row {
			return &row{event: &dispatcher.Event{ID: uuid.New(), Topic: "orders", Attempt: 1}, claimedAt: time.Now()}
		}
		deliver := func(err error, rows ...*row) verb {
			<-time.After(time.Millisecond)
			ours, errs := slices.Repeat([]bool{true}, len(rows)), slices.Repeat([]error{err}, len(rows))
			return w.judge(call{w.topic("orders"), time.Now(), 0, nil}, rows, ours, errs, nil)[0].verb
		}
		suspect := claim()
		again := func() *row { return &row{event: suspect.event, claimedAt: time.Now()} }
		for _, step := range []struct {
			what string
			do   func() verb
			want verb
		}{
			{"others are delivered", func() verb { return deliver(nil, claim()) }, ack},
			{"a fault, and nothing was delivered since its claim", func() verb { suspect = again(); return deliver(errFault, suspect) }, release},
			{"again", func() verb { return deliver(errFault, again()) }, release},
			{"others are delivered", func() verb { return deliver(nil, claim()) }, ack},
			{"a fault, and others were delivered since the last one", func() verb { return deliver(errFault, again()) }, nack},
			{"again", func() verb { return deliver(errFault, again()) }, release},
			{"claimed before others are delivered", func() verb { suspect = again(); return deliver(nil, claim()) }, ack},
			{"a fault, and others were delivered since its claim", func() verb { return deliver(errFault, suspect) }, nack},
			{"others are delivered", func() verb { return deliver(nil, claim()) }, ack},
			{"a fault that another event of the call may have met", func() verb { return deliver(errFault, again(), claim()) }, release},
		} {
			if got := step.do(); got != step.want {
				t.Errorf("%s: got %s, want %s", step.what, got, step.want)
			}
		}
	})
}

// A gateway that begins to return 503 costs few events, as order per key leaves them, no attempt: too few for a
// breaker to open.
// CONTRACT: C-32
func TestFirstFaultsSpendNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		store.enqueue("orders", 100)
		var down atomic.Bool
		sink := &stubSink{deliver: func(context.Context, *dispatcher.Event) error {
			<-time.After(time.Millisecond)
			if down.Load() {
				return errFault
			}
			return nil
		}}
		_, stop := begin(t, store, sink, dispatcher.Config{})
		passes(t, time.Minute, "the first are delivered", func() bool { return store.count("orders", "delivered") == 100 })
		down.Store(true)
		store.enqueue("orders", refusingEvents-1)
		<-time.After(10 * time.Minute)
		stop()
		if n := store.attempts("orders") - 100; n > 0 {
			t.Errorf("10 minutes of 503 spent %d attempts of %d events", n, refusingEvents-1)
		}
	})
}

// An event that makes the destination fail does spend its attempts, also where others of its topic are few.
// CONTRACT: C-32
func TestFaultAmongFewOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		store.enqueue("orders", 1)
		poison := store.order[0].event.ID
		sink := &stubSink{deliver: func(_ context.Context, e *dispatcher.Event) error {
			<-time.After(time.Millisecond)
			if e.ID == poison {
				return errFault
			}
			return nil
		}}
		_, stop := begin(t, store, sink, dispatcher.Config{})
		began := time.Now()
		for store.count("orders", "dead") == 0 && time.Since(began) < 9*time.Hour {
			store.enqueue("orders", 1)
			<-time.After(time.Minute)
		}
		stop()
		if store.count("orders", "dead") != 1 {
			t.Error("the event is not dead after 9 hours, with others that are delivered once a minute")
		}
	})
}

// Where the destination gives one result for a batch, an event that makes it fail costs itself alone: its
// neighbours come again in smaller batches, and spend no attempt. An outage spends none either.
// CONTRACT: C-32, C-33
func TestFaultOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const events = 1000
		store := newMemory()
		store.enqueue("orders", events)
		poison := store.order[42].event.ID
		sink := &together{batch: 100, deliver: func(batch []*dispatcher.Event) error {
			<-time.After(time.Millisecond)
			if slices.ContainsFunc(batch, func(e *dispatcher.Event) bool { return e.ID == poison }) {
				return errFault
			}
			return nil
		}}
		_, stop := begin(t, store, sink, dispatcher.Config{Concurrency: 1})
		took := passes(t, time.Minute, "all others are delivered", func() bool { return store.count("orders", "delivered") == events-1 })
		t.Logf("delivered in %v and %d calls", took, sink.calls.Load())
		for _, r := range store.order {
			if r.event.ID != poison && r.event.Attempt != 1 {
				t.Errorf("event %d spent %d attempts", r.event.Seq, r.event.Attempt)
			}
		}
		if n := sink.calls.Load(); n > events/100+20+50 {
			t.Errorf("%d calls were made for %d events", n, events)
		}
		began := time.Now()
		for store.count("orders", "dead") == 0 && time.Since(began) < 9*time.Hour {
			store.enqueue("orders", 10)
			<-time.After(time.Minute)
		}
		stop()
		if dead := store.count("orders", "dead"); dead != 1 || store.rows[poison].status != "dead" {
			t.Errorf("%d events are dead, want the one that makes the destination fail", dead)
		}
	})
}

// together is a Sink with one result for all events of a call.
type together struct {
	stubSink
	batch   int
	deliver func([]*dispatcher.Event) error
	calls   atomic.Int64
}

func (s *together) Deliver(_ context.Context, batch []*dispatcher.Event) []error {
	s.calls.Add(1)
	return slices.Repeat([]error{s.deliver(batch)}, len(batch))
}

func (s *together) BatchSize() int { return s.batch }
