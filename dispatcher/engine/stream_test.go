package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// batches is a Sink of batches. Each call takes a time of its own, and is noted.
type batches struct {
	stubSink
	took func(call int) time.Duration

	mu    sync.Mutex
	calls []time.Time     // when they began
	waits []time.Duration // of the events, from their creation to the end of their call
	alone int             // calls of one event
}

func (s *batches) Deliver(_ context.Context, batch []*dispatcher.Event) []error {
	s.mu.Lock()
	s.calls = append(s.calls, time.Now())
	took := s.took(len(s.calls))
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
}

func (s *batches) BatchSize() int { return 500 }

// count is how many calls there were.
func (s *batches) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

func always(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }

// stream enqueues n events at a rate, after a first one that ends the idleness.
func stream(t *testing.T, store *memory, n int, every time.Duration) {
	store.enqueue("orders", 1)
	passes(t, 2*time.Second, "the first one is delivered", func() bool { return store.count("orders", "delivered") == 1 })
	for range n {
		<-time.After(every)
		store.enqueue("orders", 1)
	}
}

// slowly is how long a claim takes.
func slowly(d time.Duration) func(context.Context, int) error {
	return func(context.Context, int) error { <-time.After(d); return nil }
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const events, seconds = 5000, 10
				store := newMemory()
				store.claim = slowly(time.Millisecond)
				sink := &batches{took: always(test.took)}
				_, stop := begin(t, store, sink, dispatcher.Config{Topics: []string{"orders"}})
				stream(t, store, events, seconds*time.Second/events)
				passes(t, time.Second, "all are delivered", func() bool { return store.count("orders", "delivered") == 1+events })
				stop()
				slices.Sort(sink.waits)
				median, longest := sink.waits[events/2], sink.waits[events-1] // one more is the first
				if n := len(sink.calls) / seconds; n > test.calls || median > test.median || longest > test.longest {
					t.Errorf("%d calls a second, waits of %v, up to %v; want at most %d, %v and %v",
						n, median, longest, test.calls, test.median, test.longest)
				}
			})
		})
	}
}

// Events that come far apart are delivered one by one: each is in the call that follows its claim at once.
func TestTrickleDoesNotGather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const events, every = 200, 50 * time.Millisecond
		store := newMemory()
		var claimed atomic.Value // when the newest claim was made
		store.claim = func(context.Context, int) error { claimed.Store(time.Now()); return nil }
		sink := &batches{}
		sink.took = func(int) time.Duration {
			if late := time.Since(claimed.Load().(time.Time)); late > 0 {
				t.Errorf("a call began %v after its claim", late)
			}
			return 5 * time.Millisecond
		}
		_, stop := begin(t, store, sink, dispatcher.Config{Topics: []string{"orders"}})
		stream(t, store, events, every)
		passes(t, 2*time.Second, "all are delivered", func() bool { return store.count("orders", "delivered") == 1+events })
		stop()
		if sink.alone < events {
			t.Errorf("%d of %d events had a call of their own", sink.alone, events)
		}
		if longest := slices.Max(sink.waits[1:]); longest > every+5*time.Millisecond {
			t.Errorf("an event waited for %v, longer than the one before it was ago", longest)
		}
	})
}

// Rows gather behind a slow call for no longer than gatherFor after it began.
func TestGatheringEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		sink := &batches{took: func(call int) time.Duration {
			if call%4 == 1 { // some never end while it matters
				return time.Minute
			}
			return 5 * time.Millisecond
		}}
		_, stop := begin(t, store, sink, dispatcher.Config{Topics: []string{"orders"}, PollInterval: 10 * time.Millisecond})
		for i := range 40 {
			before := sink.count()
			store.enqueue("orders", 1)
			took := passes(t, time.Second, fmt.Sprintf("event %d has a call", i), func() bool { return sink.count() > before })
			if most := gatherFor + 10*time.Millisecond; took > most {
				t.Errorf("event %d waited for %v behind a slow call, want at most %v", i, took, most)
			}
			<-time.After(time.Duration(rand.IntN(60)) * time.Millisecond)
		}
		passes(t, 2*time.Minute, "all are delivered", func() bool { return store.count("orders", "delivered") == 40 })
		stop()
	})
}

// The first event of a topic that no worker has seen waits no longer than those of others, however long ago the
// dispatcher found something, and while claims take their time.
func TestFirstEventOfNewTopicWaitsNoLonger(t *testing.T) {
	for name, busy := range map[string]bool{"idle": false, "becoming idle": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const poll, claim = time.Second, 40
				store := newMemory()
				store.claim = func(context.Context, int) error {
					<-time.After(time.Duration(rand.IntN(claim)) * time.Millisecond)
					return nil
				}
				sink := &batches{took: always(0)}
				_, stop := begin(t, store, sink, dispatcher.Config{PollInterval: poll})
				for i := range 500 {
					if busy {
						before := sink.count()
						store.enqueue("known", 1)
						passes(t, 2*time.Second, "the known topic has a call", func() bool { return sink.count() > before })
					}
					<-time.After(time.Duration(rand.IntN(1500)) * time.Millisecond)
					before := sink.count()
					store.enqueue(fmt.Sprint("topic-", i), 1)
					took := passes(t, 5*time.Second, "the event has a call", func() bool { return sink.count() > before })
					if most := poll + 50*time.Millisecond; took > most {
						t.Errorf("topic %d: %v, want at most %v", i, took, most)
					}
				}
				stop()
			})
		})
	}
}
