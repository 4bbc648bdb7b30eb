package cli

import (
	"errors"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// silent is an observer that counts what is passed on to it.
type silent struct {
	dispatcher.Observer
	told int
}

func (s *silent) Acked(*dispatcher.Event, time.Duration)                        { s.told++ }
func (s *silent) Failed(*dispatcher.Event, error, time.Duration, time.Duration) { s.told++ }

// Each window has what was counted since the last look before it; what is older is forgotten, and the memory with it.
// CONTRACT: C-95
func TestTallyCountsInWindows(t *testing.T) {
	observer := &silent{}
	counts := &tally{Observer: observer}
	now := time.Unix(1_000_000, 0)
	for range 3 * 240 { // three hours, one event delivered and two that failed each 15 s
		counts.Acked(nil, 0)
		counts.Failed(nil, errors.New("500"), 0, 0)
		counts.Failed(nil, errors.New("500"), 0, 0)
		counts.lately(now)
		now = now.Add(15 * time.Second)
	}
	if observer.told != 3*3*240 {
		t.Errorf("the observer behind it was told of %d outcomes", observer.told)
	}
	delivered, failed := counts.lately(now)
	if delivered != [2]int64{19, 239} || failed != [2]int64{38, 478} {
		t.Errorf("after three hours it counts %v delivered and %v failed, want what came in 5 minutes and an hour", delivered, failed)
	}
	if n := len(counts.marks); n > 242 {
		t.Errorf("it remembers %d looks", n)
	}
	if delivered, failed = counts.lately(now.Add(6 * time.Minute)); delivered[0] != 0 || failed[0] != 0 || delivered[1] == 0 {
		t.Errorf("after six minutes without an event it counts %v and %v", delivered, failed)
	}
	young := &tally{Observer: observer}
	young.Acked(nil, 0)
	if delivered, _ := young.lately(now); delivered != [2]int64{1, 1} {
		t.Errorf("a process that has just started counts %v", delivered)
	}
}
