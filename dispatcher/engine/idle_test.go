package engine_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// countingStore counts the calls of a store.
type countingStore struct {
	dispatcher.Store
	claims, listings, comparisons, writes atomic.Int64
}

func (s *countingStore) Claim(ctx context.Context, req dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	s.claims.Add(1)
	return s.Store.Claim(ctx, req)
}

func (s *countingStore) Topics(ctx context.Context) ([]string, error) {
	s.listings.Add(1)
	return s.Store.Topics(ctx)
}

func (s *countingStore) Schema(ctx context.Context) (dispatcher.Schema, error) {
	s.comparisons.Add(1)
	return s.Store.Schema(ctx)
}

func (s *countingStore) Extend(ctx context.Context, leases []dispatcher.Lease, lease time.Duration) ([]dispatcher.Lease, error) {
	s.writes.Add(1)
	return s.Store.Extend(ctx, leases, lease)
}

// An idle dispatcher runs one query in each poll interval: it claims, or, when it has to
// find its topics and there are none, it lists them. In addition it compares the schema twice a minute.
func TestIdleStatements(t *testing.T) {
	const polls, interval = 40, 20 * time.Millisecond
	for name, test := range map[string]struct {
		topics  []string
		counter func(*countingStore) (polls, others int64)
	}{
		"its topics": {[]string{"orders", "payments"}, func(s *countingStore) (int64, int64) { return s.claims.Load(), s.listings.Load() }},
		"all topics": {nil, func(s *countingStore) (int64, int64) { return s.listings.Load(), s.claims.Load() }},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			store := &countingStore{Store: r.store()}
			began := time.Now()
			r.start(store, &book{}, dispatcher.Config{Topics: test.topics, PollInterval: interval})
			r.eventually("it polls", func() bool { n, _ := test.counter(store); return n >= polls })
			n, others := test.counter(store)
			took := time.Since(began)
			if most := int64(took/interval) + 1; n > most || others != 0 || store.writes.Load() != 0 {
				t.Errorf("in %v it polled %d times, want at most %d; and ran %d other queries and wrote %d times, want none",
					took, n, most, others, store.writes.Load())
			}
			if c, most := store.comparisons.Load(), int64(took/(30*time.Second))+1; c > most {
				t.Errorf("in %v it compared the schema %d times, want at most %d", took, c, most)
			}
		})
	}
}
