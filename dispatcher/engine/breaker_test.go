package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/storetest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// Each step is an input, and what the breaker must be after it.
//
// CONTRACT: C-32
func TestBreakerFollowsCallsAndProbes(t *testing.T) {
	type step struct {
		do    func(*breaker, time.Time)
		state dispatcher.BreakerState
	}
	events := make([]*dispatcher.Event, 10)
	for i := range events {
		events[i] = &dispatcher.Event{ID: uuid.New()}
	}
	delivered := func(b *breaker, now time.Time) { b.delivered(now) }
	gone := func(calls int) func(*breaker, time.Time) {
		return func(b *breaker, now time.Time) {
			for i := range calls {
				at := now.Add(time.Duration(i))
				b.unavailable(at, at)
			}
		}
	}
	hung := func(calls int, took time.Duration) func(*breaker, time.Time) {
		return func(b *breaker, now time.Time) {
			for i := range calls {
				b.unavailable(now.Add(time.Duration(i)-took), now)
			}
		}
	}
	batches := func(calls int) func(*breaker, time.Time) {
		return func(b *breaker, now time.Time) {
			for range calls {
				b.refused(events[:], now)
			}
		}
	}
	refused := func(times, of int) func(*breaker, time.Time) {
		return func(b *breaker, now time.Time) {
			for i := range times {
				b.refused([]*dispatcher.Event{events[i%of]}, now)
			}
		}
	}
	ofTenant := func(times int, tenant byte, ago time.Duration) func(*breaker, time.Time) {
		return func(b *breaker, now time.Time) {
			for i := range times {
				b.refused([]*dispatcher.Event{{ID: events[i%10].ID, TenantID: uuid.NullUUID{UUID: uuid.UUID{tenant}, Valid: true}}}, now.Add(-ago))
			}
		}
	}
	deliveredTo := func(tenant byte) func(*breaker, time.Time) {
		return func(b *breaker, now time.Time) {
			b.tenants.delivered = uuid.NullUUID{UUID: uuid.UUID{tenant}, Valid: true}
			b.delivered(now)
		}
	}
	foundNone := func(b *breaker, now time.Time) { b.foundNone(now) }
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"unreachable until a delivery succeeds", []step{
			{gone(unreachableRun - 1), dispatcher.BreakerClosed},
			{gone(1), dispatcher.BreakerUnreachable},
			{gone(100), dispatcher.BreakerUnreachable},
			{delivered, dispatcher.BreakerClosed},
			{gone(unreachableRun - 1), dispatcher.BreakerClosed},
		}},
		{"unreachable until nothing is left to try", []step{
			{gone(unreachableRun), dispatcher.BreakerUnreachable},
			{foundNone, dispatcher.BreakerClosed},
		}},
		{"some hosts of the destination are unreachable", []step{
			{gone(unreachableRun - 1), dispatcher.BreakerClosed},
			{delivered, dispatcher.BreakerClosed},
			{gone(unreachableRun - 1), dispatcher.BreakerClosed},
		}},
		{"calls that waited in vain while nothing was delivered", []step{
			{hung(2, 5*time.Second), dispatcher.BreakerClosed},
			{hung(1, 5*time.Second), dispatcher.BreakerUnreachable},
		}},
		{"calls that waited in vain while others got through", []step{
			{delivered, dispatcher.BreakerClosed},
			{hung(30, 5*time.Second), dispatcher.BreakerClosed},
		}},
		{"refusing after a run", []step{
			{refused(refusingRun-1, 10), dispatcher.BreakerClosed},
			{refused(1, 1), dispatcher.BreakerRefusing},
			{foundNone, dispatcher.BreakerRefusing},
			{delivered, dispatcher.BreakerClosed},
			{refused(refusingRun-1, 10), dispatcher.BreakerClosed},
		}},
		{"one call that fails with all its events is one failure", []step{
			{batches(refusingCalls - 1), dispatcher.BreakerClosed},
			{batches(1), dispatcher.BreakerRefusing},
		}},
		{"a success ends the run", []step{
			{refused(refusingRun-1, 10), dispatcher.BreakerClosed},
			{delivered, dispatcher.BreakerClosed},
			{refused(refusingRun-1, 10), dispatcher.BreakerClosed},
		}},
		{"few events say nothing of the destination", []step{
			{refused(100, refusingEvents-1), dispatcher.BreakerClosed},
			{refused(refusingEvents, refusingEvents), dispatcher.BreakerRefusing},
		}},
		{"a tenant fails, and then another one", []step{
			{ofTenant(1000, 1, 0), dispatcher.BreakerClosed},
			{ofTenant(1, 2, 0), dispatcher.BreakerRefusing},
		}},
		{"a tenant fails for a minute in which nothing is delivered", []step{
			{deliveredTo(2), dispatcher.BreakerClosed},
			{ofTenant(refusingRun, 1, time.Minute), dispatcher.BreakerClosed},
			{ofTenant(1, 1, 0), dispatcher.BreakerRefusing},
		}},
		{"a tenant fails for a minute in which something of another one is delivered", []step{
			{ofTenant(refusingRun, 1, time.Minute), dispatcher.BreakerClosed},
			{deliveredTo(2), dispatcher.BreakerClosed},
			{ofTenant(refusingRun, 1, 0), dispatcher.BreakerClosed},
		}},
		{"a tenant fails whose events were delivered", []step{
			{deliveredTo(1), dispatcher.BreakerClosed},
			{ofTenant(refusingRun, 1, 0), dispatcher.BreakerRefusing},
		}},
		{"refusing, then gone, then refusing, by whole runs", []step{
			{refused(refusingRun, 5), dispatcher.BreakerRefusing},
			{gone(unreachableRun - 1), dispatcher.BreakerRefusing},
			{gone(1), dispatcher.BreakerUnreachable},
			{refused(refusingRun-1, 5), dispatcher.BreakerUnreachable},
			{refused(1, 5), dispatcher.BreakerRefusing},
			{gone(unreachableRun - 1), dispatcher.BreakerRefusing},
		}},
	} {
		// A step takes some milliseconds: all of them together are shorter than unreachableFor.
		b, now := newBreaker(), time.Unix(0, 0)
		for i, s := range test.steps {
			now = now.Add(time.Millisecond)
			if s.do(&b, now); b.state != s.state {
				t.Errorf("%s: after step %d the breaker is %s, want %s", test.name, i+1, b.state, s.state)
				break
			}
		}
	}
}

// CONTRACT: C-32
func TestHalfOpenProbesGrowAndWaitLonger(t *testing.T) {
	start := time.Unix(0, 0)
	for _, test := range []struct {
		state       dispatcher.BreakerState
		first, most time.Duration
		rows        []int
	}{
		{dispatcher.BreakerUnreachable, 250 * time.Millisecond, 2 * time.Second, []int{5, 5, 5, 5, 5, 5, 5, 5}},
		{dispatcher.BreakerRefusing, time.Second, 15 * time.Second, []int{5, 10, 20, 40, 80, 160, 320, 640}},
	} {
		b, now := newBreaker(), start
		b.open(test.state, now)
		for i, rows := range test.rows {
			// The n-th wait is up to first * 2^(n-1), and not less than half of it.
			whole := min(test.first<<i, test.most)
			if wait := b.next.Sub(now); wait < whole/2 || wait > whole {
				t.Errorf("%s: wait %d is %v, want %v to %v", test.state, i+1, wait, whole/2, whole)
			}
			need.Want(t, 0, "%s: %d rows are tried before the time", b.halfOpenLimit(b.next.Add(-1)), test.state)
			now = b.next
			need.Want(t, rows, "%s: probe %d has %d rows, want %d", b.halfOpenLimit(now), test.state, i+1)
			b.halfOpenBegan(now)
		}
		need.That(t, b.since.Equal(start), "%s: it says that it opened at %v", test.state, b.since)
		b.foundNone(now) // does not make the waits short
		b.open(test.state, now)
		need.That(t, b.next.Sub(now) >= test.most/2, "%s: open again without a delivery, the wait is %v", test.state, b.next.Sub(now))
		b.delivered(now)
		b.open(test.state, now)
		need.That(t, b.next.Sub(now) <= test.first, "%s: open again after a delivery, the wait is %v", test.state, b.next.Sub(now))
	}
}

// Half of the hosts of a topic are unreachable: its breaker stays closed, in any order of the calls.
//
// CONTRACT: C-32
func TestBreakerStaysClosedWithHalfOfTheHosts(t *testing.T) {
	for seed := range uint64(20) {
		b, now := newBreaker(), time.Unix(0, 0)
		coin := rand.New(rand.NewPCG(seed, 0))
		for call := range 20_000 {
			now = now.Add(time.Microsecond)
			if coin.IntN(2) == 0 {
				b.unavailable(now.Add(-time.Microsecond), now)
			} else {
				b.delivered(now)
			}
			if b.state != dispatcher.BreakerClosed {
				t.Fatalf("seed %d: it opened at call %d", seed, call)
			}
		}
	}
}

// outage is what is known of topics and their destination, and a clock.
type outage struct {
	topics
	now time.Time
}

func newOutage() *outage {
	o := &outage{newTopics(dispatcher.Config{Logger: slog.New(slog.DiscardHandler), Topics: []string{"a", "b"}}), time.Unix(1000, 0)}
	o.probed(nil, o.now)
	return o
}

func (o *outage) load() load {
	return load{now: o.now, alone: true, successes: o.dest.successes}
}

// allotted is how much of a topic may be claimed.
func (o *outage) allotted(topic string) allotment { return o.get(topic).allot(o.load()) }

// probe reports whether the destination is to be probed.
func (o *outage) probe() bool {
	_, probe := o.permit(o.load())
	return probe
}

var errUnreachable = dispatcher.Unavailable(errors.New("connection refused"))

func (o *outage) gone(topics ...string) {
	for _, topic := range topics {
		for range unreachableRun {
			o.now = o.now.Add(time.Microsecond)
			o.failed(o.get(topic), nil, errUnreachable, o.now, o.now)
		}
	}
}

// names lists what is held while others are delivered.
func (o *outage) names() (names []string) {
	for _, h := range o.pausedTopics() {
		names = append(names, h.Topic)
	}
	return names
}

// The destination is unreachable when a probe fails, or when every topic is paused; else single topics are paused.
//
// CONTRACT: C-32
func TestDestinationIsUnreachableWhenAllTopicsAre(t *testing.T) {
	o := newOutage()
	expect := func(when string, state dispatcher.BreakerState, held ...string) {
		t.Helper()
		if o.dest.state != state || o.dest.link.OK != (state == dispatcher.BreakerClosed) || !slices.Equal(o.names(), held) {
			t.Errorf("%s: the whole is %s (OK: %t) and held are %v, want %s and %v", when, o.dest.state, o.dest.link.OK, o.names(), state, held)
		}
	}
	expect("at the start", dispatcher.BreakerClosed)
	o.gone("a")
	expect("the only topic is unreachable", dispatcher.BreakerUnreachable)
	o.failed(o.get("b"), nil, errUnreachable, o.now, o.now)
	expect("another one has not been delivered of yet", dispatcher.BreakerUnreachable)
	o.delivered(o.get("b"), o.now)
	expect("the other one is delivered", dispatcher.BreakerClosed, "a")
	o.probed(errUnreachable, o.now)
	expect("a probe fails while the other one is delivered", dispatcher.BreakerClosed, "a")
	o.gone("b")
	expect("the other one is unreachable too", dispatcher.BreakerUnreachable)
	o.probed(errUnreachable, o.now)
	expect("a probe fails", dispatcher.BreakerUnreachable)
	o.probed(nil, o.now)
	expect("a probe succeeds", dispatcher.BreakerUnreachable)
	o.delivered(o.get("a"), o.now)
	expect("the first one has recovered", dispatcher.BreakerClosed, "b")
	o.halfOpenBegan(o.get("b"), 0, o.now)
	expect("nothing is left of the other one", dispatcher.BreakerClosed)
}

// An Unreachable topic gets a half-open probe after a success: a delivery of another topic, or a probe of the sink.
//
// CONTRACT: C-32
func TestDestinationIsProbedBeforeATopic(t *testing.T) {
	o := newOutage()
	o.gone("a")
	if a := o.allotted("a"); a.n != 0 || a.by != byBreaker || !a.next.After(o.now) || !o.again(o.load()).Equal(a.next) || o.probe() {
		t.Fatalf("right after it was opened: %+v", a)
	}
	o.now = o.again(o.load())
	if a := o.allotted("a"); a.by != byProbe || a.n != 0 || !o.probe() || o.probe() {
		t.Fatalf("it is due, and nothing was heard: %+v, and not one probe", a)
	}
	o.probed(errUnreachable, o.now)
	if wait, _ := o.permit(o.load()); wait <= 0 {
		t.Fatal("the probe failed, and claims continue")
	}
	o.now = o.now.Add(time.Minute)
	if !o.probe() {
		t.Fatal("after a minute: no probe")
	}
	o.probed(nil, o.now)
	if a := o.allotted("a"); a.n != halfOpenRows || o.probe() {
		t.Fatalf("the probe succeeded: %+v", a)
	}
	o.halfOpenBegan(o.get("a"), halfOpenRows, o.now)
	o.now = o.again(o.load())
	o.delivered(o.get("b"), o.now)
	if a := o.allotted("a"); a.n != halfOpenRows || o.probe() {
		t.Fatalf("another topic was delivered: %+v", a)
	}
}

// Topics without a row are forgotten after a while, with what was known of their destination: memory is bounded.
func TestTopicsAreForgotten(t *testing.T) {
	o := newOutage()
	var names []string
	for i := range 10_000 {
		names = append(names, fmt.Sprint("tenant-", i))
	}
	o.listed(append(names, "a", "b"), o.now)
	for _, name := range names {
		o.delivered(o.get(name), o.now)
	}
	o.gone("a")
	o.get("a").calls.running = 1
	o.now = o.now.Add(rememberFor + time.Second)
	o.listed([]string{"b"}, o.now)
	need.That(t, len(o.byName) == 2 && len(o.round.topics) == 1 && len(o.dest.paused) == 1,
		"%d topics are known, %d in turn and %d paused; want b, and a, which is in flight", len(o.byName), len(o.round.topics), len(o.dest.paused))
	o.get("a").calls.running = 0
	o.listed([]string{"b"}, o.now)
	need.That(t, len(o.byName) == 1 && len(o.dest.paused) == 0 && o.dest.state == dispatcher.BreakerClosed,
		"%d topics are known and %d paused, want 1 and none", len(o.byName), len(o.dest.paused))
}

// skipLong leaves out with -short what the race detector takes a minute over and finds nothing in: a long virtual time, and
// simulations without goroutines. These tests are named TestLong, run in parallel, and hack/test.sh runs them without it.
func skipLong(t *testing.T) {
	if testing.Short() {
		t.Skip("it is long: run it without -short")
	}
	t.Parallel()
}

// While others are delivered, a topic of faults keeps its attempts for a day from its first fault; while nothing is
// delivered, for a week.
// CONTRACT: C-32
func TestLongFaultsAloneEnd(t *testing.T) {
	skipLong(t)
	for name, test := range map[string]struct {
		others bool
		bound  time.Duration
	}{"others are delivered": {true, faultFor}, "nothing is delivered": {false, outageFor}} {
		virtual(t, name, func(t *testing.T) {
			store := storetest.NewMemory()
			store.AddLike(dispatcher.Event{Topic: "faulty", CreatedAt: time.Now().Add(-test.bound)}, 20) // the age alone says nothing
			sink := &sinktest.Func{Respond: func(_ context.Context, e *dispatcher.Event) error {
				if e.Topic == "others" {
					return nil
				}
				return errFault
			}}
			began := time.Now()
			_, stop := begin(t, store, sink, dispatcher.Config{PollInterval: 10 * time.Second})
			for time.Since(began) < test.bound-time.Minute {
				if test.others {
					store.Add("others", 1)
				}
				<-time.After(time.Hour - time.Second)
			}
			n := store.Count("faulty", "dead")
			need.That(t, n <= 0, "%d events are dead within %v", n, test.bound)
			passes(t, 10*time.Hour, "all are dead", func() bool { return store.Count("faulty", "dead") == 20 })
			stop()
		})
	}
}

// The day and the week count from the event's first fault, or from what was delivered of its topic since.
//
// CONTRACT: C-32
func TestFaultsAreSparedSinceTheTopicDelivered(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	const hour, day = time.Hour, faultFor
	for name, test := range map[string]struct {
		firstFault time.Duration
		flow       flow
		spared     bool
	}{
		"nothing was ever delivered":                   {6 * day, flow{}, true},
		"nothing was for more than a week":             {outageFor, flow{}, false},
		"others are delivered":                         {day, flow{any: ago(hour)}, false},
		"others were, before the first fault":          {2 * day, flow{any: ago(3 * day)}, true},
		"its topic was delivered since":                {3 * day, flow{topic: ago(hour), any: ago(hour)}, true},
		"its topic was, and for a day only others":     {3 * day, flow{topic: ago(day), any: ago(hour)}, false},
		"its topic was, and then nothing for two days": {3 * day, flow{topic: ago(2 * day), any: ago(2 * day)}, true},
	} {
		r := &row{event: &dispatcher.Event{FaultSince: ago(test.firstFault)}, claimedAt: now, faulty: test.firstFault}
		need.Want(t, test.spared, "%s: the attempt is given back: %t, want %t", test.flow.spares(r, now), name)
	}
	fresh := &row{event: &dispatcher.Event{}, claimedAt: now, age: outageFor}
	need.That(t, (flow{any: now}).spares(fresh, now), "the first fault of an old event spends its attempt")
}
