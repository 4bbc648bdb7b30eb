package engine_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// sites is a sink whose topics each have a destination of their own. A probe is of the destination as a whole.
type sites struct {
	*book
	mu         sync.Mutex
	down       map[string]error // topics, and what their deliveries fail with
	probeFails atomic.Bool      // the probe fails
	probes     atomic.Int64
}

func newSites(down map[string]error) *sites {
	s := &sites{book: &book{}, down: down}
	s.respond = func(_ context.Context, e *dispatcher.Event) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.down[e.Topic]
	}
	return s
}

func (s *sites) set(topic string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down[topic] = err
}

func (s *sites) Probe(context.Context) error {
	s.probes.Add(1)
	if s.probeFails.Load() {
		return errUnreachable
	}
	return nil
}

var errUnreachable = dispatcher.Unavailable(fmt.Errorf("connection refused"))

// never is a backoff of rows that are tried again when the test says so.
var never = dispatcher.ExponentialBackoff(time.Hour, time.Hour)

func (r rig) makeDue() {
	r.Helper()
	pgtest.Exec(r, "update outbox.outbox_events set next_attempt_at = now() where status = 'pending' and next_attempt_at > now()")
}

// One of three topics is unreachable the whole time. The others deliver everything; the paused one spends no
// attempt while it is unreachable, and few while it refuses. It recovers by itself.
//
// CONTRACT: C-32
func TestOutageOfOneTopic(t *testing.T) {
	const events = 500
	for name, test := range map[string]struct {
		err    error
		state  dispatcher.BreakerState
		spent  func(held time.Duration) (attempts int)
		remark string
	}{
		"unreachable": {errUnreachable, dispatcher.BreakerUnreachable, func(time.Duration) int { return 0 }, "its destination cannot be reached"},
		"refusing":    {errRefused, dispatcher.BreakerRefusing, refusals, "refuses every event"},
	} {
		t.Run(name, func(t *testing.T) {
			r, log := newRig(t), &logBook{}
			sink := newSites(map[string]error{"b": test.err})
			d := r.start(r.store(), sink, dispatcher.Config{BatchSize: 50, Concurrency: 4, MaxAttempts: 1000, Backoff: never, Logger: log.logger()})
			for range 5 { // wave after wave: the others must not only be drained once
				for _, topic := range []string{"a", "b", "c"} {
					r.enqueue(topic, events/5)
				}
				due := r.count("topic in ('a', 'c')")
				r.eventually("the other topics are delivered", func() bool { return r.count("status = 'delivered' and attempts = 1") == due })
			}
			r.eventually("the topic is paused", func() bool { return len(d.Snapshot().PausedTopics) == 1 })
			s := d.Snapshot()
			if h := s.PausedTopics[0]; h.Topic != "b" || h.Breaker != test.state || h.Err == nil || h.Since.IsZero() {
				t.Errorf("held is %+v", h)
			}
			if s.Breaker != dispatcher.BreakerClosed || !s.Sink.OK {
				t.Errorf("the snapshot says of the destination as a whole %s, %+v", s.Breaker, s.Sink)
			}
			r.eventually("what is not being tried waits", func() bool { return r.count("status = 'processing'") == 0 })
			spent := r.count("topic = 'b' and status = 'pending' and attempts > 0") // without a half-open probe under way
			if most := test.spent(time.Since(s.PausedTopics[0].Since)); spent > most {
				t.Errorf("%d events spent attempts on the outage, want at most %d", spent, most)
			}
			if n := sink.probes.Load(); n > 1+int64(len(log.lines("its destination cannot be reached"))) {
				t.Errorf("the destination was probed %d times, while other topics were delivered", n)
			}
			sink.set("b", nil)
			r.eventually("the topic recovers", func() bool {
				r.makeDue() // again: a half-open probe may have failed just now
				return r.count("status = 'delivered'") == 3*events
			})
			if s := d.Snapshot(); len(s.PausedTopics) != 0 {
				t.Errorf("still held: %+v", s.PausedTopics)
			}
			for _, remark := range []string{test.remark, "the topic is resumed"} {
				if lines := log.lines(remark); len(lines) != 1 || !strings.Contains(lines[0], `"topic":"b"`) {
					t.Errorf("the log says %q %d times, want once, of topic b: %v", remark, len(lines), lines)
				}
			}
		})
	}
}

// refusals is how many attempts a topic may spend that is held for so long, and refuses with four
// deliveries at once: the run, what was on its way or begun until the queue was given back, and half-open probes of
// growing size after at least half a second, a second and so on.
func refusals(held time.Duration) (attempts int) {
	attempts = 30 + 4 + 50
	for at, wait, rows := time.Duration(0), 500*time.Millisecond, 5; at+wait <= held; rows *= 2 {
		attempts += rows
		at += wait
		wait = min(2*wait, 7500*time.Millisecond)
	}
	return attempts
}

// One of fifty topics is dead. The others are delivered with one attempt each, and nothing is claimed
// for the failed one but half-open probes.
//
// CONTRACT: C-32
func TestOutageOfOneAmongMany(t *testing.T) {
	const topics, each = 50, 20
	r := newRig(t)
	sink := newSites(map[string]error{"topic-7": errUnreachable})
	for i := range topics {
		r.enqueue(fmt.Sprint("topic-", i), each)
	}
	r.enqueue("topic-7", 2000)
	d := r.start(r.store(), sink, dispatcher.Config{})
	r.eventually("the others are delivered", func() bool { return r.count("status = 'delivered' and attempts = 1") == (topics-1)*each })
	r.eventually("the dead one is held", func() bool { h := d.Snapshot().PausedTopics; return len(h) == 1 && h[0].Topic == "topic-7" })
	r.eventually("its rows are left alone", func() bool {
		return r.count("topic = 'topic-7' and status = 'pending' and attempts = 0") == 2000+each
	})
	sink.set("topic-7", nil)
	r.eventually("it recovers", func() bool { return r.count("status = 'delivered'") == topics*each+2000 })
}

// All topics fail: then the destination as a whole is unreachable or refuses, and no topic is reported as paused
// while others are delivered. A probe that fails stops everything at once.
//
// CONTRACT: C-32
func TestOutageOfAllTopics(t *testing.T) {
	const each = 200
	for name, err := range map[string]error{"unreachable": errUnreachable, "refusing": errRefused} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			all := map[string]error{"a": err, "b": err, "c": err}
			sink := newSites(all)
			for topic := range all {
				r.enqueue(topic, each)
			}
			d := r.start(r.store(), sink, dispatcher.Config{MaxAttempts: 1000, Backoff: never})
			want := map[string]dispatcher.BreakerState{"unreachable": dispatcher.BreakerUnreachable, "refusing": dispatcher.BreakerRefusing}[name]
			r.eventually("the destination is unreachable", func() bool {
				s := d.Snapshot()
				return s.Breaker == want && !s.Sink.OK && len(s.PausedTopics) == 0
			})
			sink.probeFails.Store(true) // now even a probe fails
			if dispatcher.IsUnavailable(err) {
				r.eventually("every row waits with its attempt", func() bool { return r.count("status = 'pending' and attempts = 0") == 3*each })
			}
			for _, topic := range []string{"a", "b", "c"} {
				sink.set(topic, nil)
			}
			sink.probeFails.Store(false)
			r.eventually("all is delivered", func() bool {
				r.makeDue()
				return r.count("status = 'delivered'") == 3*each
			})
			r.eventually("all is well", func() bool {
				s := d.Snapshot()
				return s.Breaker == dispatcher.BreakerClosed && s.Sink.OK && len(s.PausedTopics) == 0
			})
		})
	}
}

// A topic whose destination comes and goes does not disturb the others, and all of its events arrive
// with the attempts that they had.
//
// CONTRACT: C-32
func TestOutageThatFlaps(t *testing.T) {
	const events = 2000
	r := newRig(t)
	sink := newSites(map[string]error{})
	d := r.start(r.store(), sink, dispatcher.Config{BatchSize: 50, Concurrency: 4})
	held := func() bool { return len(d.Snapshot().PausedTopics) == 1 }
	for round := range 3 {
		sink.set("b", errUnreachable)
		r.enqueue("a", events)
		r.enqueue("b", events)
		r.eventually("the other topic is delivered", func() bool { return sink.topic("a") == (round+1)*events })
		r.eventually("the topic is paused", held)
		sink.set("b", nil)
		r.eventually("the topic is delivered", func() bool { return sink.topic("b") == (round+1)*events })
	}
	r.eventually("every row was delivered at its first attempt", func() bool {
		return r.count("status = 'delivered' and attempts = 1") == 3*2*events
	})
}

// Half of the hosts behind a topic are unreachable, and refuse connections at once. The events find
// the other half, and the topic is never held.
//
// CONTRACT: C-32
func TestOutageOfSomeHosts(t *testing.T) {
	const events = 500
	r, log := newRig(t), &logBook{}
	r.enqueue("orders", events)
	var calls atomic.Int64
	sink := &book{respond: func(context.Context, *dispatcher.Event) error {
		if calls.Add(1)*2654435761>>7%2 == 0 { // a host by chance, the same in every run
			return errUnreachable
		}
		return nil
	}}
	d := r.start(r.store(), sink, dispatcher.Config{BatchSize: 50, Concurrency: 8, Logger: log.logger()})
	r.eventually("every row is delivered without a lost attempt", func() bool { return r.count("status = 'delivered' and attempts = 1") == events })
	if lines := log.lines("the topic is paused"); len(lines) != 0 {
		t.Errorf("the topic was paused: %v", lines)
	}
	if s := d.Snapshot(); s.Breaker != dispatcher.BreakerClosed || len(s.PausedTopics) != 0 {
		t.Errorf("the snapshot says %s, %v", s.Breaker, s.PausedTopics)
	}
}

// Another worker may deliver the rest while this one waits: with nothing left to try, nothing keeps
// the topic paused, and the process is ready again.
//
// CONTRACT: C-32
func TestOutageEndsWithoutRows(t *testing.T) {
	r := newRig(t)
	r.enqueue("orders", 100)
	sink := newSites(map[string]error{"orders": errUnreachable})
	d := r.start(r.store(), sink, dispatcher.Config{})
	r.eventually("the breaker notices", func() bool { return d.Snapshot().Breaker == dispatcher.BreakerUnreachable })
	r.eventually("the rows are free", func() bool { return r.count("status = 'pending'") == 100 })
	pgtest.Exec(r, "update outbox.outbox_events set status = 'delivered', locked_by = null, locked_until = null") // a probe may have one again
	r.eventually("nothing is held", func() bool { s := d.Snapshot(); return s.Breaker == dispatcher.BreakerClosed && s.Sink.OK })
}
