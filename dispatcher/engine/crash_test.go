package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
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

// mortal is a process that may end as by kill -9: from then on nothing of it reaches its store.
type mortal struct {
	ends context.Context
	kill context.CancelFunc
}

// live runs a process until it ends or done holds. It is started again after its grace period. The sink's function
// is not called for a process that has ended.
func live(t *testing.T, store dispatcher.Store, cfg dispatcher.Config, limit time.Duration, done func() bool,
	deliver func(m mortal, e *dispatcher.Event) error) (ended bool) {
	var m mortal
	m.ends, m.kill = context.WithCancel(t.Context())
	sink := &sinktest.Func{Respond: func(_ context.Context, e *dispatcher.Event) error {
		if err := m.ends.Err(); err != nil {
			return err
		}
		return deliver(m, e)
	}}
	mortal := &storetest.Hooked{Store: store, Before: func(context.Context, storetest.Call) error { return m.ends.Err() }}
	_, stop := begin(t, mortal, sink, cfg)
	defer stop()
	passes(t, limit, "the process ends, or all is done", func() bool { return m.ends.Err() != nil || done() })
	return m.ends.Err() != nil
}

// One event that ends the process which delivers it, wherever it stands among others, is found: the others are
// delivered, at their first attempt.
// CONTRACT: C-21, C-22, C-33
func TestEventThatEndsTheProcessIsFound(t *testing.T) {
	const events = 1000
	for _, culprit := range []int64{1, 51, 500, 1000} {
		virtual(t, fmt.Sprint(culprit), func(t *testing.T) {
			store := storetest.NewMemory()
			store.Add("orders", events)
			began, crashes := time.Now(), 0
			done := func() bool {
				return store.Count("orders", "delivered") == events-1 && store.Count("orders", "dead") == 1
			}
			for !done() {
				if live(t, store, dispatcher.Config{}, 10*time.Minute, done, func(m mortal, e *dispatcher.Event) error {
					if e.Seq == culprit {
						m.kill()
					}
					<-time.After(20 * time.Millisecond)
					return m.ends.Err()
				}) {
					crashes++
				}
			}
			took := time.Since(began)
			t.Logf("%d crashes in %v", crashes, took)
			if crashes != 5 || took > 10*time.Minute {
				t.Errorf("%d crashes in %v, want 5 within 10 minutes", crashes, took)
			}
			if n := store.Attempts("orders"); n != events {
				t.Errorf("%d attempts were spent on %d events; a crash charges none", n, events)
			}
		})
	}
}

// A process that is killed again and again while its destination hangs makes nothing dead that was never sent.
// CONTRACT: C-21, C-22, C-33
func TestKilledProcessKillsNothingUnsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewMemory()
		store.Add("orders", 300)
		var mu sync.Mutex
		sent := map[uuid.UUID]int{}
		never := func() bool { return false }
		cfg := dispatcher.Config{Lease: 3 * time.Second, MaxAttempts: 5}
		for range 20 {
			live(t, store, cfg, time.Hour, never, func(m mortal, e *dispatcher.Event) error {
				mu.Lock()
				sent[e.ID]++
				mu.Unlock()
				select {
				case <-time.After(2 * time.Second):
					m.kill()
				case <-m.ends.Done():
				}
				return m.ends.Err()
			})
		}
		all := func() bool { return store.Count("orders", "delivered")+store.Count("orders", "dead") == 300 }
		live(t, store, cfg, 20*time.Minute, all, func(mortal, *dispatcher.Event) error { return nil })
		for _, id := range store.IDs() {
			if store.Row(id).Status == "dead" && sent[id] < 4 {
				t.Errorf("event %s is dead, and was sent %d times", id, sent[id])
			}
		}
		t.Logf("%d dead", store.Count("orders", "dead"))
	})
}

// A process that something else kills every 6 to 16 s makes nothing dead that the destination takes, though it takes 9 s over one in
// ten.
// CONTRACT: C-22, C-33
func TestKillsFromOutsideKillNothing(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			store, rnd := storetest.NewMemory(), rand.New(rand.NewPCG(seed, 1))
			store.Add("orders", 400)
			done := func() bool { return store.Count("orders", "delivered")+store.Count("orders", "dead") == 400 }
			lives := 0
			for ; !done(); lives++ {
				ends := time.Now().Add(6*time.Second + time.Duration(rnd.Int64N(int64(10*time.Second))))
				if lives == 24 {
					ends = ends.Add(time.Hour)
				}
				var once sync.Once
				live(t, store, dispatcher.Config{}, time.Hour, func() bool { return done() || time.Now().After(ends) }, func(m mortal, e *dispatcher.Event) error {
					once.Do(func() { time.AfterFunc(time.Until(ends), m.kill) })
					takes := 50 * time.Millisecond
					if e.Seq%10 == 0 {
						takes = 9 * time.Second
					}
					select {
					case <-time.After(takes):
					case <-m.ends.Done():
					}
					return m.ends.Err()
				})
			}
			need.That(t, store.Count("orders", "dead") == 0, "%d of 400 events are dead after %d lives", store.Count("orders", "dead"), lives)
		})
	}
}

// suspected makes rows of a topic those of a process that ended, each begun so often as a suspect.
func suspected(t *testing.T, store *storetest.Memory, topic string, n, begun int) {
	store.Add(topic, n)
	out, err := store.Claim(t.Context(), dispatcher.ClaimRequest{Shares: []dispatcher.Share{{Topic: topic, Limit: 1000}}, Lease: -1, MaxAttempts: 20})
	var leases []dispatcher.Lease
	for _, e := range out.Events {
		if e.Suspicion == 0 { // not one of an earlier call
			leases = append(leases, e.Lease())
		}
	}
	for range begun + 1 {
		_, err = store.Begin(t.Context(), leases)
	}
	if err != nil || len(leases) != n {
		t.Fatalf("%d of %d rows are suspected: %v", len(leases), n, err)
	}
}

// few is a Sink that fails the test when suspects are in delivery that must not be together.
func few(t *testing.T, batch int) dispatcher.Sink {
	var inDelivery atomic.Int64
	return &sinktest.Func{Max: batch, RespondAll: func(_ context.Context, batch []*dispatcher.Event) []error {
		weight := 0
		for _, e := range batch {
			weight += (&row{event: e}).weight()
		}
		defer inDelivery.Add(int64(-weight))
		if all := inDelivery.Add(int64(weight)); all > 8 {
			t.Errorf("%d events in a call, with those of other calls of the weight %d; want 8 suspects at most, or one that was begun before", len(batch), all)
		}
		<-time.After(10 * time.Millisecond)
		return make([]error, len(batch))
	}}
}

// Suspects are delivered few at once, in calls of one event and of many, and those that were begun before alone. They
// delay no other topic, and a call that hangs delays them for a thirtieth of the lease.
// CONTRACT: C-21, C-33
func TestSuspectsAreDeliveredFewAtOnce(t *testing.T) {
	for _, batch := range []int{1, 100} {
		synctest.Test(t, func(t *testing.T) {
			store := storetest.NewMemory()
			suspected(t, store, "a", 150, 0)
			suspected(t, store, "b", 150, 0)
			suspected(t, store, "a", 20, 1)
			suspected(t, store, "b", 20, 3)
			store.Add("c", 100)
			begin(t, store, few(t, batch), dispatcher.Config{})
			if took := delivered(t, time.Minute, store, "c", 100); took > time.Second {
				t.Errorf("the others took %v, want no more than a second", took)
			}
			passes(t, time.Minute, "all are delivered", func() bool { return store.Count("a", "delivered")+store.Count("b", "delivered") == 340 })
		})
	}
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewMemory()
		suspected(t, store, "hangs", 1, 1)
		suspected(t, store, "well", 1, 1)
		began, release := time.Now(), make(chan struct{})
		_, stop := begin(t, store, &sinktest.Func{Respond: func(_ context.Context, e *dispatcher.Event) error {
			if e.Topic == "hangs" {
				<-release
			}
			return nil
		}}, dispatcher.Config{})
		delivered(t, time.Minute, store, "well", 1)
		if took := time.Since(began); took < time.Second || took > 3*time.Second {
			t.Errorf("it took %v, want a thirtieth of the lease", took)
		}
		close(release)
		stop()
	})
}

// noBegin is a store that does not count deliveries.
type noBegin struct {
	*storetest.Memory
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
		virtual(t, name, func(t *testing.T) {
			store.Memory = storetest.NewMemory()
			suspected(t, store.Memory, "orders", 1, 1)
			d, stop := begin(t, store, &sinktest.Func{Respond: func(_ context.Context, e *dispatcher.Event) error {
				if e.Suspicion > 0 {
					t.Error("a delivery began that was not counted")
				}
				return nil
			}}, dispatcher.Config{})
			delivered(t, time.Minute, store.Memory, "orders", 1)
			if n := store.Attempts("orders"); n != 1 || store.calls != 1 || d.Snapshot().Breaker != dispatcher.BreakerClosed {
				t.Errorf("%d attempts after %d calls, breaker %s; want one, one, and a closed one", n, store.calls, d.Snapshot().Breaker)
			}
			stop()
		})
	}
}

// A database that did not respond at all, and does so again, takes the outcomes of what was delivered meanwhile, also
// those whose leases are over: no event is delivered again. When in the wait it responds again makes no difference.
//
// CONTRACT: C-33
func TestOutcomesOutliveAFreeze(t *testing.T) {
	for frozen := 24 * time.Second; frozen <= 60*time.Second; frozen += time.Second {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			freezes, thaws := began.Add(time.Second), began.Add(time.Second+frozen)
			store, takes := storetest.NewMemory(), func(string, []string) (time.Duration, error) {
				if now := time.Now(); now.After(freezes) && now.Before(thaws) {
					return thaws.Sub(now) + time.Millisecond, nil
				}
				return time.Millisecond, nil
			}
			store.Add("orders", 40)
			store.Add("returns", 40)
			sink := confirms(1, func(*dispatcher.Event) error { <-time.After(500 * time.Millisecond); return nil })
			d, stop := begin(t, server{takes: takes}.with(store), sink, dispatcher.Config{Lease: 30 * time.Second})
			passes(t, frozen+2*time.Minute, "all are delivered", func() bool { return store.Count("orders", "delivered")+store.Count("returns", "delivered") == 80 })
			if n := again(sink, "orders") + again(sink, "returns"); n > 0 {
				t.Errorf("after %v without a response %d events were delivered again; the snapshot says %+v", frozen, n, d.Snapshot().Outcomes)
			}
			stop()
		})
	}
}

// No more of a topic is claimed while outcomes of it are written apart.
func TestOutcomesWrittenApartLimitClaims(t *testing.T) {
	c := newCompleter(&Dispatcher{}, nil)
	var results []result
	for _, topic := range []string{"bad", "bad", "well"} {
		results = append(results, result{row: &row{event: &dispatcher.Event{Topic: topic}}})
	}
	if others := c.sift(ack, results, results[:2]); len(others) != 1 || others[0].row.event.Topic != "well" {
		t.Errorf("%d outcomes are not suspected, want the one of the other topic", len(others))
	}
	if got := c.unwrittenTopics(); !maps.Equal(got, map[string]bool{"bad": true}) {
		t.Errorf("the topics with outcomes that are not written are %v, want bad", got)
	}
}
