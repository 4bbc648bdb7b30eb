package engine

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/storetest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// typed adds an event of a topic for each of the types.
func typed(store *storetest.Memory, topic string, types ...string) {
	for _, name := range types {
		store.AddLike(dispatcher.Event{Topic: topic, EventType: name}, 1)
	}
}

// types admits those types.
func types(admitted ...string) func(string) bool {
	return func(eventType string) bool { return slices.Contains(admitted, eventType) }
}

// pad is so many events of one type.
func pad(eventType string, n int) []string { return slices.Repeat([]string{eventType}, n) }

// What is due before the first event that is not admitted is delivered, and the rest of the topic waits: with its
// attempts, for ever if need be, at the cost of a row now and then, while others flow. It continues at once when the type
// is admitted.
//
// CONTRACT: C-82
func TestGatePausesATopic(t *testing.T) {
	for _, ordering := range []dispatcher.Ordering{dispatcher.OrderingNone, dispatcher.OrderingKey} {
		synctest.Test(t, func(t *testing.T) {
			store := storetest.NewMemory()
			var claimed atomic.Int64
			typed(store, "orders", slices.Concat(pad("placed", 10), pad("shipped", 1), pad("placed", 1000))...)
			typed(store, "refunds", pad("", 3)...)
			sink := &sinktest.Recording{}
			d := newDispatcher(t, store, sink, dispatcher.Config{MaxAttempts: 2, Ordering: ordering, Concurrency: 1, Observer: claimCounter{Observer: noObserver{}, n: &claimed}})
			d.Admit(types("placed", "paid"))
			stop := running(t, d)
			delivered(t, time.Minute, store, "orders", 10)
			typed(store, "payments", pad("paid", 100)...)
			delivered(t, time.Minute, store, "payments", 100)
			before := claimed.Load()
			<-time.After(time.Hour)
			if n := claimed.Load() - before; n < 2*110 || n > 2*250 {
				t.Errorf("%s: %d rows were claimed of two paused topics in an hour, want one of each about every 15 to 30 seconds", ordering, n)
			}
			for topic, want := range map[string]int{"orders": 10, "refunds": 0} {
				n, attempts := store.Count(topic, "delivered"), store.Attempts(topic)
				need.That(t, n == want && attempts == want, "%s: %d %s are delivered with %d attempts, want %d", ordering, n, topic, attempts, want)
			}
			s := d.Snapshot()
			need.That(t, len(s.Gated) == 2 && s.Gated[0].Topic == "orders" && s.Gated[0].EventType == "shipped" && s.Gated[1].EventType == "" && time.Since(s.Gated[0].Since) >= time.Hour,
				"%s: gated %+v", ordering, s.Gated)
			need.That(t, s.Breaker == dispatcher.BreakerClosed && s.Sink.OK && len(s.PausedTopics) == 0 && s.LastError == "",
				"%s: the destination is said to be %s, %+v, %v", ordering, s.Breaker, s.Sink, s.PausedTopics)

			d.Admit(types("placed", "shipped", ""))
			delivered(t, time.Second, store, "orders", 1011)
			delivered(t, time.Second, store, "refunds", 3)
			passes(t, 10*time.Second, "nothing is held", func() bool { return len(d.Snapshot().Gated) == 0 })
			orders := slices.DeleteFunc(sink.Events(), func(e *dispatcher.Event) bool { return e.Topic != "orders" })
			need.Want(t, 10, "%s: shipped was sent after %d others, want its turn after 10", slices.IndexFunc(orders, func(e *dispatcher.Event) bool { return e.EventType == "shipped" }), ordering)
			need.Want(t, 1011, "%s: %d attempts for 1011 events", store.Attempts("orders"), ordering)
			stop()
		})
	}
}

// claimCounter counts claimed rows.
type claimCounter struct {
	dispatcher.Observer
	n *atomic.Int64
}

func (c claimCounter) Claimed(_ string, n int) { c.n.Add(int64(n)) }

// When Admit returns, no delivery begins of what is not admitted any more, be it claimed already. Nothing is lost.
//
// CONTRACT: C-82
func TestClosedGateBeginsNoDelivery(t *testing.T) {
	for _, ordering := range []dispatcher.Ordering{dispatcher.OrderingNone, dispatcher.OrderingKey} {
		synctest.Test(t, func(t *testing.T) {
			store := storetest.NewMemory()
			typed(store, "orders", pad("placed", 60)...)
			end := make(chan struct{})
			var begun atomic.Int64
			sink := &sinktest.Func{Respond: func(context.Context, *dispatcher.Event) error { begun.Add(1); <-end; return nil }}
			d, _ := begin(t, store, sink, dispatcher.Config{Concurrency: 4, BatchSize: 60, Ordering: ordering})
			synctest.Wait()
			if begun.Load() != 4 || store.Count("orders", "processing") <= 4 {
				t.Fatalf("%d deliveries began, and %d rows are claimed", begun.Load(), store.Count("orders", "processing"))
			}
			d.Admit(types("paid"))
			close(end)
			<-time.After(10 * time.Minute)
			if begun.Load() != 4 || store.Count("orders", "pending") != 56 || store.Attempts("orders") != 4 {
				t.Errorf("%s: %d deliveries began, %d rows wait, %d attempts are spent", ordering, begun.Load(), store.Count("orders", "pending"), store.Attempts("orders"))
			}
			d.Admit(nil)
			delivered(t, time.Second, store, "orders", 60)
		})
	}
}

// RunOnce does not wait for a person.
func TestRunOnceDoesNotWaitForTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewMemory()
		typed(store, "orders", "placed", "shipped", "placed")
		d := newDispatcher(t, store, &sinktest.Func{}, dispatcher.Config{})
		d.Admit(types("placed"))
		done, err := d.RunOnce(t.Context(), 10)
		need.That(t, done.Delivered == 1 && err != nil && strings.Contains(err.Error(), `topic "orders" is paused: the type of its next event, "shipped", is not admitted`),
			"%+v, %v", done, err)
		d.Admit(nil)
		if done, err := d.RunOnce(t.Context(), 10); err != nil || done != (Outcome{Delivered: 2}) {
			t.Errorf("then %+v, %v", done, err)
		}
	})
}

// Each step is what a claim brought, and what is held after it.
func TestGateStaysClosedUntilTwoChecksAreEmpty(t *testing.T) {
	now := time.Now()
	for name, test := range map[string]struct {
		rows  []int  // of the claims; negative with one that is not admitted
		holds string // after each: y or n
	}{
		"two checks without a row end it":    {[]int{-3, 0, 0}, "yyn"},
		"one may be another worker's":        {[]int{-3, 0, -1, 0, 0}, "yyyyn"},
		"a check that is admitted opens it":  {[]int{-3, 1, 10}, "ynn"},
		"and the next claim closes it again": {[]int{-3, 1, -10, 0, 0}, "ynyyn"},
		"what is admitted holds nothing":     {[]int{5, 0}, "nn"},
	} {
		ts := newTopics(dispatcher.Config{Logger: slog.New(slog.DiscardHandler), Topics: []string{"orders"}})
		orders := ts.get("orders")
		allotted := func(after time.Duration) allotment {
			return orders.allot(load{now: now.Add(after), alone: true})
		}
		var holds strings.Builder
		for _, n := range test.rows {
			ts.checked(orders, max(n, -n), "shipped", n < 0, now)
			if len(ts.gatedTopics()) > 0 {
				holds.WriteByte('y')
				if a := allotted(0); a.n != 0 || a.by != byGate || !a.next.After(now) || !ts.again(load{now: now}).Equal(a.next) {
					t.Errorf("%s: a claim may take %+v at once", name, a)
				}
				if a := allotted(30 * time.Second); a.n != 1 || a.by != byGate {
					t.Errorf("%s: a claim may take %+v after 30 seconds", name, a)
				}
				// The breaker's limit stays.
				orders.breaker.state, orders.breaker.next = dispatcher.BreakerRefusing, now.Add(time.Minute)
				if a := allotted(30 * time.Second); a.n != 0 {
					t.Errorf("%s: a claim may take %+v of a topic that the breaker holds too", name, a)
				}
				orders.breaker.state = dispatcher.BreakerClosed
			} else {
				holds.WriteByte('n')
				a := allotted(0)
				need.That(t, a.by == unlimited && ts.again(load{now: now}).IsZero(), "%s: nothing is held, and a claim may take %+v", name, a)
			}
			now = now.Add(time.Second)
		}
		need.Want(t, test.holds, "%s: held %s, want %s", holds.String(), name)
	}
}

// batches is a Sink of batches. Each call takes a time of its own, and is noted.
type batches struct {
	*sinktest.Func
	took func(call int) time.Duration

	mu    sync.Mutex
	calls int
	waits []time.Duration // of the events, from their creation to the end of their call
	alone int             // calls of one event
}

func newBatches(took func(call int) time.Duration) *batches {
	s := &batches{took: took}
	s.Func = &sinktest.Func{Max: 500, RespondAll: func(_ context.Context, batch []*dispatcher.Event) []error {
		s.mu.Lock()
		s.calls++
		took := s.took(s.calls)
		if len(batch) == 1 {
			s.alone++
		}
		s.mu.Unlock()
		<-time.After(took)
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, e := range batch {
			s.waits = append(s.waits, time.Since(e.CreatedAt))
		}
		return make([]error, len(batch))
	}}
	return s
}

// count is how many calls there were.
func (s *batches) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func always(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }

// stream enqueues n events at a rate, after a first one that ends the idleness.
func stream(t *testing.T, store *storetest.Memory, n int, every time.Duration) {
	store.Add("orders", 1)
	delivered(t, 2*time.Second, store, "orders", 1)
	for range n {
		<-time.After(every)
		store.Add("orders", 1)
	}
}

// A stream comes to a sink of batches in few calls, and no event of it waits for long.
func TestStreamComesInBatches(t *testing.T) {
	for name, test := range map[string]struct {
		took, most, median, longest time.Duration
		calls                       int // a second
	}{
		"short calls": {took: 3 * time.Millisecond, calls: 126, median: 10 * time.Millisecond, longest: 20 * time.Millisecond},
		"long calls":  {took: 20 * time.Millisecond, calls: 51, median: 40 * time.Millisecond, longest: 60 * time.Millisecond},
	} {
		virtual(t, name, func(t *testing.T) {
			const events, seconds = 5000, 10
			store := storetest.NewMemory()
			sink := newBatches(always(test.took))
			_, stop := begin(t, onClaim(store, slowly(time.Millisecond)), sink, dispatcher.Config{Topics: []string{"orders"}})
			stream(t, store, events, seconds*time.Second/events)
			delivered(t, time.Second, store, "orders", 1+events)
			stop()
			slices.Sort(sink.waits)
			median, longest := sink.waits[events/2], sink.waits[events-1] // one more is the first
			n := sink.calls / seconds
			need.That(t, n <= test.calls && median <= test.median && longest <= test.longest,
				"%d calls a second, waits of %v, up to %v; want at most %d, %v and %v", n, median, longest, test.calls, test.median, test.longest)
		})
	}
}

// Events that come far apart are delivered one by one: each is in the call that follows its claim at once.
func TestTrickleDoesNotGather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const events, every = 200, 50 * time.Millisecond
		store := storetest.NewMemory()
		var claimed atomic.Value // when the newest claim was made
		noted := onClaim(store, func() { claimed.Store(time.Now()) })
		sink := newBatches(func(int) time.Duration {
			late := time.Since(claimed.Load().(time.Time))
			need.That(t, late <= 0, "a call began %v after its claim", late)
			return 5 * time.Millisecond
		})
		_, stop := begin(t, noted, sink, dispatcher.Config{Topics: []string{"orders"}})
		stream(t, store, events, every)
		delivered(t, 2*time.Second, store, "orders", 1+events)
		stop()
		need.That(t, sink.alone >= events, "%d of %d events had a call of their own", sink.alone, events)
		longest := slices.Max(sink.waits[1:])
		need.That(t, longest <= every+5*time.Millisecond, "an event waited for %v, longer than the one before it was ago", longest)
	})
}

// Rows gather behind a slow call for no longer than gatherFor after it began.
func TestGatheringEndsSoonBehindASlowCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewMemory()
		sink := newBatches(func(call int) time.Duration {
			if call%4 == 1 { // some never end while it matters
				return time.Minute
			}
			return 5 * time.Millisecond
		})
		_, stop := begin(t, store, sink, dispatcher.Config{Topics: []string{"orders"}, PollInterval: 10 * time.Millisecond})
		for i := range 40 {
			before := sink.count()
			store.Add("orders", 1)
			took := passes(t, time.Second, fmt.Sprintf("event %d has a call", i), func() bool { return sink.count() > before })
			most := gatherFor + 10*time.Millisecond
			need.That(t, took <= most, "event %d waited for %v behind a slow call, want at most %v", i, took, most)
			<-time.After(time.Duration(rand.IntN(60)) * time.Millisecond)
		}
		delivered(t, 2*time.Minute, store, "orders", 40)
		stop()
	})
}

// The first event of a topic that no worker has seen waits no longer than those of others, however long ago the
// dispatcher found something, and while claims take their time.
func TestFirstEventOfNewTopicWaitsNoLonger(t *testing.T) {
	for name, busy := range map[string]bool{"idle": false, "becoming idle": true} {
		virtual(t, name, func(t *testing.T) {
			const poll, claim = time.Second, 40
			store := storetest.NewMemory()
			slow := onClaim(store, func() { <-time.After(time.Duration(rand.IntN(claim)) * time.Millisecond) })
			sink := newBatches(always(0))
			_, stop := begin(t, slow, sink, dispatcher.Config{PollInterval: poll})
			for i := range 500 {
				if busy {
					before := sink.count()
					store.Add("known", 1)
					passes(t, 2*time.Second, "the known topic has a call", func() bool { return sink.count() > before })
				}
				<-time.After(time.Duration(rand.IntN(1500)) * time.Millisecond)
				before := sink.count()
				store.Add(fmt.Sprint("topic-", i), 1)
				took := passes(t, 5*time.Second, "the event has a call", func() bool { return sink.count() > before })
				most := poll + 50*time.Millisecond
				need.That(t, took <= most, "topic %d: %v, want at most %v", i, took, most)
			}
			stop()
		})
	}
}
