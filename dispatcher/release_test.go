package dispatcher_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// deafRelease is a store whose first Release is done, and says that it failed.
type deafRelease struct {
	dispatcher.Store
	claimed chan struct{} // gets a word for each claim that brought rows

	mu   sync.Mutex
	lost []int // of each Release, how many leases the store refused
}

func (s *deafRelease) Claim(ctx context.Context, req dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	claimed, err := s.Store.Claim(ctx, req)
	if len(claimed.Events) > 0 {
		s.claimed <- struct{}{}
	}
	return claimed, err
}

func (s *deafRelease) Release(ctx context.Context, leases []dispatcher.Lease) ([]dispatcher.Lease, error) {
	lost, err := s.Store.Release(ctx, leases)
	s.mu.Lock()
	s.lost = append(s.lost, len(lost))
	first := len(s.lost) == 1
	s.mu.Unlock()
	if !first || err != nil {
		return lost, err
	}
	select {
	case <-s.claimed: // the row, again: too early
	case <-time.After(200 * time.Millisecond):
	}
	return nil, errors.New("the answer was lost")
}

func (s *deafRelease) refused() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lost)
}

// A release whose answer was lost is tried again. The same worker may have claimed the row meanwhile,
// under the same attempt: the second try must not hit that lease, or another worker publishes the
// fencing token once more.
// CONTRACT: C-23, C-27
func TestReleaseTriedAgain(t *testing.T) {
	r := newRig(t)
	r.enqueue("orders", 1)
	begun, finish := make(chan int, 10), make(chan struct{})
	n := 0
	sink := &book{answer: func(context.Context, *dispatcher.Event) error {
		n++ // one delivery at a time: there is one event
		begun <- n
		if n == 1 {
			return dispatcher.Unavailable(errors.New("nobody there"))
		}
		<-finish
		return nil
	}}
	store := &deafRelease{Store: r.store(), claimed: make(chan struct{}, 10)}
	r.start(store, sink, dispatcher.Config{})
	<-store.claimed // the first time
	receive(t, "the first delivery begins", begun)
	receive(t, "the second delivery begins", begun)
	r.eventually("the release is tried again", func() bool { return len(store.refused()) == 2 })
	if got := store.refused(); got[1] != 1 {
		t.Error("the second try took the row from the delivery that runs")
	}
	close(finish)
	r.eventually("delivered", func() bool { return r.count("status = 'delivered' and attempts = 1") == 1 })
}
