package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// deaf is a store whose first release is done, and says that it failed.
type deaf struct {
	dispatcher.Store
	claimed chan struct{} // gets a word for each claim that brought rows
	done    chan struct{} // closed when the first is done

	mu   sync.Mutex
	lost []int // of each, how many leases the store refused
}

func (s *deaf) Claim(ctx context.Context, req dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	claimed, err := s.Store.Claim(ctx, req)
	if len(claimed.Events) > 0 {
		s.claimed <- struct{}{}
	}
	return claimed, err
}

func (s *deaf) Release(ctx context.Context, returns []dispatcher.Return) ([]dispatcher.Lease, error) {
	lost, err := s.Store.Release(ctx, returns)
	s.mu.Lock()
	s.lost = append(s.lost, len(lost))
	first := len(s.lost) == 1
	s.mu.Unlock()
	if !first || err != nil {
		return lost, err
	}
	for len(s.claimed) > 0 {
		<-s.claimed // from before
	}
	close(s.done)
	select {
	case <-s.claimed: // the row, again
	case <-time.After(time.Second):
	}
	return nil, errors.New("the response was lost")
}

func (s *deaf) refused() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lost)
}

// An attempt is given back, the response is lost, and that is tried again. The same worker may have claimed
// the row meanwhile, as the same attempt: the second try must not hit that lease. A row whose destination is unreachable
// waits while others of its topic are delivered.
// CONTRACT: C-23, C-27
func TestReleaseTriedAgain(t *testing.T) {
	for _, delivered := range []bool{true, false} {
		t.Run(fmt.Sprintf("others delivered %t", delivered), func(t *testing.T) {
			r := newRig(t)
			r.enqueue("orders", 1)
			good := uuid.New()
			if delivered {
				pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, payload) values ($1, 'shop', 'orders', '{}')`, good)
			}
			events := r.count("live")
			store := &deaf{Store: r.store(), claimed: make(chan struct{}, 1000), done: make(chan struct{})}
			begun, finish := make(chan struct{}, 10), make(chan struct{})
			sink := &book{respond: func(_ context.Context, e *dispatcher.Event) error {
				if e.ID == good {
					return nil
				}
				select {
				case <-store.done:
				default:
					return errUnreachable
				}
				begun <- struct{}{}
				<-finish
				return nil
			}}
			r.start(store, sink, dispatcher.Config{})
			receive(t, "the next delivery begins", begun)
			r.eventually("it is tried again", func() bool { return len(store.refused()) == 2 })
			if got := store.refused(); got[1] != 1 {
				t.Error("the second try took the row from the delivery that runs")
			}
			close(finish)
			r.eventually("delivered", func() bool { return r.count("status = 'delivered' and attempts = 1") == events })
		})
	}
}
