package engine

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// worker is a run whose deliveries are only judged. It needs neither a database nor a destination.
type worker struct{ *run }

func newWorker(t *testing.T) worker {
	t.Helper()
	cfg := dispatcher.Config{Backoff: dispatcher.ExponentialBackoff(time.Hour, time.Hour), Logger: slog.New(slog.DiscardHandler)}
	d, err := New(struct{ dispatcher.Store }{}, dispatcher.Handlers{}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return worker{newRun(t.Context(), d)}
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
func TestPartOfATopicIsUnreachable(t *testing.T) {
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
			if step.do(); delivering("orders") != step.want {
				t.Errorf("%s: delivering is %t", step.what, !step.want)
			}
			if delivering("payments") {
				t.Errorf("%s: of another topic nothing was delivered", step.what)
			}
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
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorker(t)
				w.tries("orders", 0, nil, nil)
				got := w.tries(test.topic, test.age, test.err, test.cut)
				if f := got.failure; got.verb != test.verb || f.Delay < test.delay || f.Delay > 2*test.delay || f.Reason != "" {
					t.Errorf("got %+v, want %+v", got, test)
				} else if (got.verb == nack || f.Delay > 0) && test.cut == nil && f.Error != test.err.Error() {
					t.Errorf("last_error is %q", f.Error)
				}
			})
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
		if took := time.Since(down); took > 90*time.Second {
			t.Errorf("the last of %d workers paused the topic after %s", len(workers), took)
		}
		t.Logf("paused by all after %s and %d tries", time.Since(down), tries)
	})
}

// quietStore has no rows, and reports each claim.
type quietStore struct {
	dispatcher.Store
	claims chan struct{}
}

func (quietStore) Schema(context.Context) (dispatcher.Schema, error) {
	return dispatcher.Schema{State: dispatcher.SchemaReady}, nil
}

func (s quietStore) Claim(context.Context, dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	s.claims <- struct{}{}
	return dispatcher.Claimed{}, nil
}

// Wake ends the wait for the next poll, however long that is.
func TestWakeEndsThePollWait(t *testing.T) {
	store := quietStore{claims: make(chan struct{})}
	d, err := New(store, dispatcher.Handlers{}, dispatcher.Config{Logger: slog.New(slog.DiscardHandler), Topics: []string{"a"}, Lease: time.Hour, PollInterval: 20 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	r := newRun(t.Context(), d)
	ctx, cancel := context.WithCancel(t.Context())
	r.life.workers.Go(func() { r.claimLoop(ctx) })
	claimed := func(what string) {
		t.Helper()
		select {
		case <-store.claims:
		case <-time.After(time.Minute):
			t.Fatalf("no claim was made %s", what)
		}
	}
	claimed("at the start")
	for range 3 {
		d.Wake()
		claimed("after Wake")
	}
	cancel()
	r.life.workers.Wait()
}

// While events flow the waits are short; after that each is as long as the quiet before it, up to the
// poll interval. A dispatcher that has found nothing yet is idle.
// REQUIREMENT: STORAGE-47
func TestIdleWaits(t *testing.T) {
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
		if !slices.Equal(waits, want) {
			t.Errorf("before a sink of %d the waits are %v, want %v", batch, waits, want)
		}
		if got := p.idle(0, ms); got != ms {
			t.Errorf("the wait is %v, longer than the poll interval", got)
		}
	}
	store := quietStore{claims: make(chan struct{}, 100)}
	d, err := New(store, dispatcher.Handlers{}, dispatcher.Config{Logger: slog.New(slog.DiscardHandler), Topics: []string{"a"}, Lease: time.Minute, PollInterval: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	r := newRun(t.Context(), d)
	r.tryClaim(t.Context())
	r.life.probing.Wait() // the first claim probes the destination
	if got := r.tryClaim(t.Context()); got != 10*time.Second {
		t.Errorf("the first wait of an idle dispatcher is %v, want the poll interval", got)
	}
}

// forgetfulStore has one row, and does not take its ack the first few times.
type forgetfulStore struct {
	dispatcher.Store
	mu    sync.Mutex
	calls []string
	done  chan struct{}
}

func (s *forgetfulStore) note(call string) (before int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if c == call {
			before++
		}
	}
	s.calls = append(s.calls, call)
	return before
}

func (s *forgetfulStore) Schema(context.Context) (dispatcher.Schema, error) {
	return dispatcher.Schema{State: dispatcher.SchemaReady}, nil
}

func (s *forgetfulStore) Claim(context.Context, dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	switch s.note("claim") {
	case 0:
		return claimOf("a", 1, 1), nil
	default:
		return dispatcher.Claimed{}, nil
	}
}

func (s *forgetfulStore) Ack(context.Context, []dispatcher.Lease) ([]dispatcher.Lease, error) {
	switch s.note("ack") {
	case 0, 1, 2:
		return nil, errors.New("the database is unreachable")
	default:
		close(s.done)
		return nil, nil
	}
}

// While outcomes wait for the database nothing is claimed: it could be the very rows that were
// delivered, once their leases have expired.
//
// CONTRACT: C-23
func TestOutcomesAreWrittenBeforeTheNextClaim(t *testing.T) {
	store := &forgetfulStore{done: make(chan struct{})}
	deliver := make(chan struct{})
	d, err := New(store, dispatcher.Handlers{"a": func(context.Context, *dispatcher.Event) error { <-deliver; return nil }},
		dispatcher.Config{Logger: slog.New(slog.DiscardHandler), Topics: []string{"a"}, PollInterval: 2 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	close(deliver)
	select {
	case <-store.done:
	case <-time.After(time.Minute):
		t.Fatal("the ack was not tried again")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	store.mu.Lock()
	defer store.mu.Unlock()
	claims, acks := 0, 0
	for _, call := range store.calls {
		switch {
		case call == "ack":
			acks++
		case acks == 2 || acks == 3: // the loop knows by now
			claims++
		}
	}
	if claims > 1 { // one may have been under way
		t.Errorf("%d claims were made before the outcome was written: %v", claims, store.calls)
	}
}
