package cli

import (
	"errors"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

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
