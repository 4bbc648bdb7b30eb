package engine

import (
	"context"
	"errors"
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

// worker is a run whose deliveries are only judged. It needs neither a database nor a destination.
type worker struct{ *run }

func newWorker(t *testing.T) worker {
	t.Helper()
	cfg := dispatcher.Config{Backoff: dispatcher.ExponentialBackoff(time.Hour, time.Hour)}
	return worker{newRun(t.Context(), newDispatcher(t, storetest.NewMemory(), &sinktest.Func{}, cfg))}
}

// topic is one that the worker knows from now on.
func (w worker) topic(name string) *topic {
	w.flight.mu.Lock()
	defer w.flight.mu.Unlock()
	t := w.flight.topics.get(name)
	t.turn.listed = true
	return t
}

// paused reports whether a topic is.
func (w worker) paused(name string) bool {
	t := w.topic(name)
	w.flight.mu.Lock()
	defer w.flight.mu.Unlock()
	return w.flight.topics.topicPaused(t)
}

// tries judges a delivery of an event of that age, which ends now.
func (w worker) tries(topic string, age time.Duration, err, cut error) outcome {
	now := time.Now()
	e := &dispatcher.Event{ID: uuid.New(), Topic: topic, Attempt: 1}
	results := w.judge(call{w.topic(topic), now, 0, cut}, []*row{{event: e, age: age, claimedAt: now}}, []bool{true}, []error{err}, nil)
	return results[0].outcome
}

// An event whose destination is unreachable is an exception while its topic is not paused, and something of it was delivered
// in the last minute.
// CONTRACT: C-32
func TestPartOfATopicIsUnreachableWhileOthersAreDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t)
		called := func(topic string, err error) flow {
			rows := []*row{{event: &dispatcher.Event{ID: uuid.New(), Topic: topic}}}
			_, flow := w.flight.called(call{w.topic(topic), time.Now(), 0, errLeaseLost}, rows, []bool{err != nil}, []error{err})
			if err == nil {
				_, flow = w.flight.called(call{w.topic(topic), time.Now(), 0, nil}, rows, []bool{true}, []error{nil})
			}
			return flow
		}
		gone := func(calls int) {
			for range calls {
				w.tries("orders", 0, errUnreachable, nil)
				<-time.After(time.Millisecond)
			}
		}
		// delivering reads the flow by a call that was cut, which says nothing of the destination.
		delivering := func(topic string) bool { return called(topic, errUnreachable).delivering() }
		for _, step := range []struct {
			what string
			do   func()
			want bool
		}{
			{"nothing is known", func() {}, false},
			{"never delivered", func() { gone(1) }, false},
			{"delivered", func() { called("orders", nil) }, true},
			{"that is 59 seconds ago", func() { <-time.After(59 * time.Second) }, true},
			{"that is a minute ago", func() { <-time.After(time.Second) }, false},
			{"delivered again", func() { called("orders", nil) }, true},
			{"held", func() { gone(unreachableRun) }, false},
			{"delivered by a half-open probe", func() { called("orders", nil) }, true},
			{"a probe failed", func() { w.flight.probed(errUnreachable) }, true},
		} {
			step.do()
			need.That(t, delivering("orders") == step.want, "%s: delivering is %t", step.what, !step.want)
			need.That(t, !delivering("payments"), "%s: of another topic nothing was delivered", step.what)
		}
	})
}

var errFault = dispatcher.DestinationFault(errors.New("503"))

// Such an event waits for a quarter of its age, within bounds, and keeps its attempt. All others go the way
// they went before.
// CONTRACT: C-24, C-32
func TestPostponedEventWaitsAQuarterOfItsAge(t *testing.T) {
	for _, test := range []struct {
		name     string
		topic    string // orders are delivered
		age      time.Duration
		err, cut error
		verb     verb
		delay    time.Duration
	}{
		{"young", "orders", 8 * time.Second, errUnreachable, nil, release, 2 * time.Second},
		{"old", "orders", time.Hour, errUnreachable, nil, release, 15 * time.Second},
		{"from the future", "orders", -time.Hour, errUnreachable, nil, release, time.Second},
		{"cancelled", "orders", time.Hour, errUnreachable, context.Canceled, release, 0},
		{"refused", "orders", time.Hour, dispatcher.RetryAfter(2*time.Hour, errors.New("refused")), nil, nack, 2 * time.Hour},
		{"nothing of the topic was delivered", "payments", time.Hour, errUnreachable, nil, release, 0},
		{"a fault after the last delivery", "orders", 8 * time.Second, errFault, nil, release, 2 * time.Second},
		{"a fault while nothing is delivered", "payments", 8 * time.Second, errFault, nil, release, 2 * time.Second},
		{"a fault with a Retry-After", "payments", time.Second, dispatcher.RetryAfter(time.Minute, errFault), nil, release, time.Minute},
		{"a fault of a call that was cut", "payments", time.Hour, errFault, context.Canceled, nack, 30 * time.Minute},
	} {
		virtual(t, test.name, func(t *testing.T) {
			w := newWorker(t)
			w.tries("orders", 0, nil, nil)
			got := w.tries(test.topic, test.age, test.err, test.cut)
			if f := got.failure; got.verb != test.verb || f.Delay < test.delay || f.Delay > 2*test.delay || f.Reason != "" {
				t.Errorf("got %+v, want %+v", got, test)
			} else if (got.verb == nack || f.Delay > 0) && test.cut == nil && f.Error != test.err.Error() {
				t.Errorf("last_error is %q", f.Error)
			}
		})
	}
}

// When a whole topic becomes unreachable, every worker pauses it soon, however few events are left to try and however
// many workers try them in turn: an old event waits that long only while others are delivered.
// CONTRACT: C-32
func TestUnreachableTopicIsPausedByEveryWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each = 50 * time.Millisecond // a poll
		var workers [8]worker
		for i := range workers {
			workers[i] = newWorker(t)
			workers[i].tries("orders", 0, nil, nil)
		}
		down, tries := time.Now(), 0
		for held := 0; held < len(workers); tries++ {
			w := workers[tries%len(workers)]
			if w.paused("orders") {
				continue
			}
			out := w.tries("orders", time.Hour, errUnreachable, nil)
			if w.paused("orders") {
				held++
			}
			<-time.After(max(out.failure.Delay, each))
		}
		took := time.Since(down)
		need.That(t, took <= 90*time.Second, "the last of %d workers paused the topic after %s", len(workers), took)
		t.Logf("paused by all after %s and %d tries", time.Since(down), tries)
	})
}

// Wake ends the wait for the next poll, however long that is.
func TestWakeEndsThePollWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var claims atomic.Int64
		store := onClaim(storetest.NewMemory(), func() { claims.Add(1) })
		d, _ := begin(t, store, &sinktest.Func{}, dispatcher.Config{Topics: []string{"a"}, Lease: time.Hour, PollInterval: 20 * time.Minute})
		for range 4 {
			passes(t, time.Second, "a claim is made", func() bool { return claims.Load() > 0 })
			<-time.After(10 * time.Minute)
			claims.Store(0)
			d.Wake()
		}
	})
}

// While events flow the waits are short; after that each is as long as the quiet before it, up to the
// poll interval. A dispatcher that has found nothing yet is idle.
// REQUIREMENT: STORAGE-47
func TestIdleWaitsGrowToThePollInterval(t *testing.T) {
	const ms = time.Millisecond
	for batch, want := range map[int][]time.Duration{
		1:   {2 * ms, 2 * ms, 2 * ms, 2 * ms, 8 * ms, 16 * ms, 32 * ms, 64 * ms, 128 * ms, 256 * ms, 300 * ms, 300 * ms},
		500: {8 * ms, 8 * ms, 8 * ms, 8 * ms, 32 * ms, 64 * ms, 128 * ms, 256 * ms, 300 * ms, 300 * ms},
	} {
		p := newPace(batch)
		var waits []time.Duration
		for quiet := time.Duration(0); quiet < time.Second; {
			wait := p.idle(quiet, 300*ms)
			waits = append(waits, wait)
			quiet += wait
		}
		need.WantAll(t, want, "before a sink of %d the waits are %v, want %v", waits, batch)
		need.Want(t, ms, "the wait is %v, longer than the poll interval", p.idle(0, ms))
	}
	r := newRun(t.Context(), newDispatcher(t, storetest.NewMemory(), &sinktest.Func{}, dispatcher.Config{Topics: []string{"a"}, Lease: time.Minute, PollInterval: 10 * time.Second}))
	r.tryClaim(t.Context())
	r.life.probing.Wait() // the first claim probes the destination
	need.Want(t, 10*time.Second, "the first wait of an idle dispatcher is %v, want the poll interval", r.tryClaim(t.Context()))
}

// While outcomes wait for the database nothing is claimed: it could be the very rows that were
// delivered, once their leases have expired.
//
// CONTRACT: C-23
func TestOutcomesAreWrittenBeforeTheNextClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := storetest.NewMemory()
		rows.Add("a", 1)
		var mu sync.Mutex
		acks, claims := 0, 0
		store := &storetest.Hooked{Store: rows, Before: func(_ context.Context, c storetest.Call) error {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case c.Verb == "ack":
				if acks++; acks < 4 {
					return errors.New("the database is unreachable")
				}
			case c.Verb == "claim" && (acks == 2 || acks == 3): // the loop knows by now
				claims++
			}
			return nil
		}}
		_, stop := begin(t, store, &sinktest.Func{}, dispatcher.Config{Topics: []string{"a"}, PollInterval: 2 * time.Millisecond})
		delivered(t, time.Minute, rows, "a", 1)
		if stop(); claims > 1 { // one may have been under way
			t.Errorf("%d claims were made before the outcome was written", claims)
		}
	})
}

// What expires makes room for the next portion, which is claimed at once.
// CONTRACT: C-18
func TestExpiredRowsAreFollowedByTheNextClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewMemory()
		store.AddLike(dispatcher.Event{Topic: "orders", Expires: time.Now()}, 5000)
		store.Add("orders", 1)
		begin(t, store, &sinktest.Func{}, dispatcher.Config{Topics: []string{"orders"}, PollInterval: 10 * time.Second})
		delivered(t, 10*time.Second, store, "orders", 1)
	})
}
