package outbox

import (
	"errors"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// Why all topics are paused is what the destination responded last, not the newest failure of some delivery.
func TestPausedTopicsSayWhy(t *testing.T) {
	paused := pausedTopics(dispatcher.Snapshot{
		Breaker: dispatcher.BreakerUnreachable, Sink: dispatcher.LinkState{Known: true, Err: errors.New("connection\x00 refused")}, LastError: "the consumer responded 422",
	})
	if got, want := paused[""], "the destination is Unreachable: connection refused"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	gated := pausedTopics(dispatcher.Snapshot{Gated: []dispatcher.GatedTopic{{Topic: "orders", EventType: "order.placed"}}})
	if got, want := gated["orders"], `the type of its next event, "order.placed", is not admitted; register its consumer`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// countingObserver counts its calls.
type countingObserver struct {
	dispatcher.Observer
	calls int
}

func (o *countingObserver) Acked(*dispatcher.Event, time.Duration)                        { o.calls++ }
func (o *countingObserver) Failed(*dispatcher.Event, error, time.Duration, time.Duration) { o.calls++ }

// A window counts from the last heartbeat before it; older counts are dropped.
// CONTRACT: C-95
func TestTallyCountsInWindows(t *testing.T) {
	observer := &countingObserver{}
	counts := &tally{Observer: observer}
	now := time.Unix(1_000_000, 0)
	for range 3 * 240 { // three hours, one event delivered and two that failed each 15 s
		counts.Acked(nil, 0)
		counts.Failed(nil, errors.New("500"), 0, 0)
		counts.Failed(nil, errors.New("500"), 0, 0)
		counts.lately(now)
		now = now.Add(15 * time.Second)
	}
	if want := 3 * 3 * 240; observer.calls != want {
		t.Errorf("the observer got %d calls, want %d", observer.calls, want)
	}
	delivered, failed := counts.lately(now)
	if delivered != [2]int64{19, 239} || failed != [2]int64{38, 478} {
		t.Errorf("after three hours it counts %v delivered and %v failed, want what came in 5 minutes and an hour", delivered, failed)
	}
	if n := len(counts.marks); n > 242 {
		t.Errorf("%d marks are kept, want at most 242", n)
	}
	if delivered, failed = counts.lately(now.Add(6 * time.Minute)); delivered[0] != 0 || failed[0] != 0 || delivered[1] == 0 {
		t.Errorf("after six minutes without an event it counts %v delivered and %v failed, want none in the shorter window", delivered, failed)
	}
	young := &tally{Observer: observer}
	young.Acked(nil, 0)
	if delivered, _ := young.lately(now); delivered != [2]int64{1, 1} {
		t.Errorf("a process that has just started counts %v, want its one delivery in each window", delivered)
	}
}

// The rate is that of the last 15 seconds, and of less in a process that has just started.
func TestTallyCountsPerSecond(t *testing.T) {
	counts := &tally{Observer: &countingObserver{}}
	counts.tick()
	need.Want(t, 0, "before a second is over it is %v", counts.perSecond())
	second := func(events int) {
		for range events {
			counts.Acked(nil, 0)
		}
		counts.tick()
	}
	second(4)
	second(8)
	need.Want(t, 6, "after two seconds it is %v, want 6", counts.perSecond())
	for range 40 {
		second(30)
	}
	if got := counts.perSecond(); got != 30 || len(counts.recent) != 16 {
		t.Errorf("it is %v of %d counts, want 30 of 16", got, len(counts.recent))
	}
	for range 5 {
		second(0)
	}
	need.Want(t, 20, "five idle seconds later it is %v, want 20", counts.perSecond())
}
