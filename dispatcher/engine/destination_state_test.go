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

// outage is a destination and a clock.
type outage struct {
	destination
	now time.Time
}

func newOutage() *outage {
	o := &outage{newDestination(slog.New(slog.DiscardHandler)), time.Unix(1000, 0)}
	o.probed(nil, o.now)
	return o
}

var errUnreachable = dispatcher.Unavailable(errors.New("connection refused"))

func (o *outage) gone(topics ...string) {
	for _, topic := range topics {
		for range unreachableRun {
			o.now = o.now.Add(time.Microsecond)
			o.failed(topic, nil, errUnreachable, o.now, o.now)
		}
	}
}

func (o *outage) next() permit {
	return o.permit(o.now, func(string, time.Time) bool { return false })
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
	o.failed("b", nil, errUnreachable, o.now, o.now)
	expect("another one has not been delivered of yet", dispatcher.BreakerUnreachable)
	o.delivered("b", o.now)
	expect("the other one is delivered", dispatcher.BreakerClosed, "a")
	o.probed(errUnreachable, o.now)
	expect("a probe fails while the other one is delivered", dispatcher.BreakerClosed, "a")
	o.gone("b")
	expect("the other one is unreachable too", dispatcher.BreakerUnreachable)
	o.probed(errUnreachable, o.now)
	expect("a probe fails", dispatcher.BreakerUnreachable)
	o.probed(nil, o.now)
	expect("a probe succeeds", dispatcher.BreakerUnreachable)
	o.delivered("a", o.now)
	expect("the first one has recovered", dispatcher.BreakerClosed, "b")
	o.halfOpenBegan("b", 0, o.now)
	expect("nothing is left of the other one", dispatcher.BreakerClosed)
}

// An Unreachable topic gets a half-open probe after a success: a delivery of another topic, or a probe of the sink.
//
// CONTRACT: C-32
func TestDestinationIsProbedBeforeATopic(t *testing.T) {
	o := newOutage()
	o.gone("a")
	p := o.next()
	if rows, held := p.limits["a"]; !held || rows != 0 || !p.next.After(o.now) {
		t.Fatalf("right after it was opened: %+v", p)
	}
	o.now = p.next
	if !o.next().probe {
		t.Fatal("it is due, and nothing was heard: no probe")
	}
	o.probed(errUnreachable, o.now)
	if p := o.next(); p.wait <= 0 {
		t.Fatalf("the probe failed: %+v", p)
	}
	o.now = o.now.Add(time.Minute)
	if !o.next().probe {
		t.Fatal("after a minute: no probe")
	}
	o.probed(nil, o.now)
	if p := o.next(); p.limits["a"] != halfOpenRows || p.probe {
		t.Fatalf("the probe succeeded: %+v", p)
	}
	if p := o.permit(o.now, func(string, time.Time) bool { return true }); p.limits["a"] != 0 || !p.next.After(o.now) {
		t.Fatalf("rows of it are still in flight: %+v", p)
	}
	o.halfOpenBegan("a", halfOpenRows, o.now)
	o.now = o.next().next
	o.delivered("b", o.now)
	if p := o.next(); p.limits["a"] != halfOpenRows || p.probe {
		t.Fatalf("another topic was delivered: %+v", p)
	}
}

// Topics of which nothing was tried to deliver for a while are forgotten: memory is bounded, and a
// held one is tried as any other.
func TestDestinationForgets(t *testing.T) {
	o := newOutage()
	for i := range 10_000 {
		o.delivered(fmt.Sprint("tenant-", i), o.now)
	}
	o.gone("a")
	for range 3 {
		o.delivered("b", o.now)
		o.next()
		o.now = o.now.Add(forgetEvery)
	}
	if len(o.topics) != 1 || len(o.paused) != 0 || o.state != dispatcher.BreakerClosed {
		t.Errorf("%d topics are known and %d held, want 1 and none", len(o.topics), len(o.paused))
	}
}
