package engine

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// suspected makes rows of a topic those of a process that ended, each begun so often as a suspect.
func (m *memory) suspected(topic string, n, begun int) {
	m.enqueue(topic, n)
	for _, r := range m.order[len(m.order)-n:] {
		r.status, r.event.Attempt, r.event.Suspicion = "processing", 1, begun+1
	}
}

// few is a Sink that fails the test when suspects are in delivery that must not be together.
type few struct {
	*testing.T
	stubSink
	mu     sync.Mutex
	weight int
}

func (f *few) Deliver(_ context.Context, batch []*dispatcher.Event) []error {
	weight := 0
	for _, e := range batch {
		weight += (&row{event: e}).weight()
	}
	f.mu.Lock()
	if f.weight += weight; f.weight > 8 {
		f.Errorf("%d events in a call, with those of other calls of the weight %d; want 8 suspects at most, or one that was begun before", len(batch), f.weight)
	}
	f.mu.Unlock()
	<-time.After(10 * time.Millisecond)
	f.mu.Lock()
	f.weight -= weight
	f.mu.Unlock()
	return make([]error, len(batch))
}

// Suspects are delivered few at once, in calls of one event and of many, and those that were begun before alone. They
// delay no other topic, and a call that hangs delays them for a third of the lease.
// CONTRACT: C-21, C-33
func TestSuspectsAreDeliveredFewAtOnce(t *testing.T) {
	for _, batch := range []int{1, 100} {
		synctest.Test(t, func(t *testing.T) {
			store := newMemory()
			store.suspected("a", 150, 0)
			store.suspected("b", 150, 0)
			store.suspected("a", 20, 1)
			store.suspected("b", 20, 3)
			store.enqueue("c", 100)
			sink := &few{T: t, stubSink: stubSink{batch: batch}}
			begin(t, store, sink, dispatcher.Config{})
			if took := passes(t, time.Minute, "all others are delivered", func() bool { return store.count("c", "delivered") == 100 }); took > time.Second {
				t.Errorf("the others took %v, want no more than a second", took)
			}
			passes(t, time.Minute, "all are delivered", func() bool { return store.count("a", "delivered")+store.count("b", "delivered") == 340 })
		})
	}
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		store.suspected("hangs", 1, 1)
		store.suspected("well", 1, 1)
		began, release := time.Now(), make(chan struct{})
		_, stop := begin(t, store, &stubSink{deliver: func(_ context.Context, e *dispatcher.Event) error {
			if e.Topic == "hangs" {
				<-release
			}
			return nil
		}}, dispatcher.Config{})
		passes(t, time.Minute, "the other suspect is delivered", func() bool { return store.count("well", "delivered") == 1 })
		if took := time.Since(began); took < 10*time.Second || took > 16*time.Second {
			t.Errorf("it took %v, want a third of the lease", took)
		}
		close(release)
		stop()
	})
}

// noBegin is a store that does not count deliveries.
type noBegin struct {
	*memory
	err   error
	lost  bool
	calls int
}

func (s *noBegin) Begin(_ context.Context, leases []dispatcher.Lease) (lost []dispatcher.Lease, err error) {
	if s.calls++; s.lost {
		lost = leases
	}
	return lost, s.err
}

// A suspect whose delivery cannot be counted, or that another worker has, is not delivered but released with its attempt.
// The destination is not blamed.
// CONTRACT: C-21, C-23, C-32
func TestSuspectThatIsNotCountedIsReleased(t *testing.T) {
	for name, store := range map[string]*noBegin{"refused": {err: errors.New("refused")}, "lost": {lost: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store.memory = newMemory()
				store.suspected("orders", 1, 1)
				d, stop := begin(t, store, &stubSink{deliver: func(_ context.Context, e *dispatcher.Event) error {
					if e.Suspicion > 0 {
						t.Error("a delivery began that was not counted")
					}
					return nil
				}}, dispatcher.Config{})
				passes(t, time.Minute, "it is delivered after its release", func() bool { return store.count("orders", "delivered") == 1 })
				if n := store.attempts("orders"); n != 1 || store.calls != 1 || d.Snapshot().Breaker != dispatcher.BreakerClosed {
					t.Errorf("%d attempts after %d calls, breaker %s; want one, one, and a closed one", n, store.calls, d.Snapshot().Breaker)
				}
				stop()
			})
		})
	}
}
