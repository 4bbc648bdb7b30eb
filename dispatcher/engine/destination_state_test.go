package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// outage is what is known of topics and their destination, and a clock.
type outage struct {
	topics
	now time.Time
}

func newOutage() *outage {
	o := &outage{newTopics(slog.New(slog.DiscardHandler), nil), time.Unix(1000, 0)}
	o.probed(nil, o.now)
	return o
}

func (o *outage) load() load {
	return load{now: o.now, alone: true, successes: o.successes}
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
func TestDestinationAsAWhole(t *testing.T) {
	o := newOutage()
	expect := func(when string, state dispatcher.BreakerState, held ...string) {
		t.Helper()
		if o.state != state || o.link.OK != (state == dispatcher.BreakerClosed) || !slices.Equal(o.names(), held) {
			t.Errorf("%s: the whole is %s (OK: %t) and held are %v, want %s and %v", when, o.state, o.link.OK, o.names(), state, held)
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
	if a := o.allotted("a"); a.rows != 0 || a.by != byBreaker || !a.next.After(o.now) || !o.again(o.load()).Equal(a.next) || o.probe() {
		t.Fatalf("right after it was opened: %+v", a)
	}
	o.now = o.again(o.load())
	if a := o.allotted("a"); a.by != byProbe || a.rows != 0 || !o.probe() || o.probe() {
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
	if a := o.allotted("a"); a.rows != halfOpenRows || o.probe() {
		t.Fatalf("the probe succeeded: %+v", a)
	}
	o.halfOpenBegan(o.get("a"), halfOpenRows, o.now)
	o.now = o.again(o.load())
	o.delivered(o.get("b"), o.now)
	if a := o.allotted("a"); a.rows != halfOpenRows || o.probe() {
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
	o.get("a").running = 1
	o.now = o.now.Add(rememberFor + time.Second)
	o.listed([]string{"b"}, o.now)
	if len(o.byName) != 2 || len(o.turn) != 1 || len(o.paused) != 1 {
		t.Errorf("%d topics are known, %d in turn and %d paused; want b, and a, which is in flight", len(o.byName), len(o.turn), len(o.paused))
	}
	o.get("a").running = 0
	o.listed([]string{"b"}, o.now)
	if len(o.byName) != 1 || len(o.paused) != 0 || o.state != dispatcher.BreakerClosed {
		t.Errorf("%d topics are known and %d paused, want 1 and none", len(o.byName), len(o.paused))
	}
}
