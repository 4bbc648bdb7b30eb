package engine

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

func (s *slow) Schema(ctx context.Context) (dispatcher.Schema, error) {
	if err := s.statement(ctx, "schema", nil); err != nil {
		return dispatcher.Schema{}, err
	}
	return s.memory.Schema(ctx)
}

// A database that did not respond at all, and does so again, takes the outcomes of what was delivered meanwhile, also
// those whose leases are over: no event is delivered again. When in the wait it responds again makes no difference.
//
// CONTRACT: C-33
func TestOutcomesOutliveAFreeze(t *testing.T) {
	for frozen := 24 * time.Second; frozen <= 60*time.Second; frozen += time.Second {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			freezes, thaws := began.Add(time.Second), began.Add(time.Second+frozen)
			store := &slow{memory: newMemory(), takes: func(string, []string) (time.Duration, error) {
				if now := time.Now(); now.After(freezes) && now.Before(thaws) {
					return thaws.Sub(now) + time.Millisecond, nil
				}
				return time.Millisecond, nil
			}}
			store.enqueue("orders", 40)
			store.enqueue("returns", 40)
			sink := newConfirmed(1, func(*dispatcher.Event) error { <-time.After(500 * time.Millisecond); return nil })
			d, stop := begin(t, store, sink, dispatcher.Config{Lease: 30 * time.Second})
			passes(t, frozen+2*time.Minute, "all are delivered", func() bool {
				return store.count("orders", "delivered")+store.count("returns", "delivered") == 80
			})
			if n := sink.again(store.memory, "orders") + sink.again(store.memory, "returns"); n > 0 {
				t.Errorf("after %v without a response %d events were delivered again; the snapshot says %+v", frozen, n, d.Snapshot().Outcomes)
			}
			stop()
		})
	}
}

// No more of a topic is claimed while outcomes of it are written apart.
func TestSuspectsLimitClaims(t *testing.T) {
	c := newCompleter(&Dispatcher{}, nil)
	var results []result
	for _, topic := range []string{"bad", "bad", "well"} {
		results = append(results, result{row: &row{event: &dispatcher.Event{Topic: topic}}})
	}
	if others := c.sift(ack, results, results[:2]); len(others) != 1 || others[0].row.event.Topic != "well" {
		t.Errorf("%d outcomes are not suspected, want the one of the other topic", len(others))
	}
	if got := c.unwrittenTopics(); !maps.Equal(got, map[string]bool{"bad": true}) {
		t.Errorf("the topics with outcomes that are not written are %v, want bad", got)
	}
}
