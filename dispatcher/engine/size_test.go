package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// A statement that fails for its rows is halved. A full one doubles the next if it took less than a quarter of what was too
// long last.
// CONTRACT: C-35
func TestSizeLearns(t *testing.T) {
	s := size{chunkRows, storeTimeout}
	for i, step := range []struct {
		rows int
		took time.Duration
		err  error
		want int
	}{
		{2000, 600 * time.Millisecond, sqlState("57014"), 1000},
		{1000, 140 * time.Millisecond, nil, 2000},
		{2000, 10 * time.Second, context.DeadlineExceeded, 1000},
		{1000, 3 * time.Second, nil, 1000},
		{1000, 2 * time.Second, nil, 2000},
		{2000, time.Millisecond, nil, 2000},
		{100, time.Millisecond, dispatcher.Refused(errContent), 50},
		{10, time.Millisecond, nil, 50},
		{50, time.Millisecond, nil, 100},
		{1, time.Second, dispatcher.Refused(errContent), 1},
		{1, 2 * time.Second, nil, 2},
		{2, time.Second, errContent, 2},
	} {
		if s.learn(step.rows, step.took, step.err); s.rows != step.want {
			t.Fatalf("step %d: the next statement has %d rows, want %d", i, s.rows, step.want)
		}
	}
}

// oneHangs is a store that the server cuts off when it marks one event delivered.
type oneHangs struct {
	*memory
	id uuid.UUID
}

func (s *oneHangs) Ack(ctx context.Context, leases []dispatcher.Lease) ([]dispatcher.Lease, error) {
	for _, l := range leases {
		if l.ID == s.id {
			<-time.After(600 * time.Millisecond)
			return nil, sqlState("57014")
		}
	}
	return s.memory.Ack(ctx, leases)
}

// An outcome that takes too long alone delays those of its own topic for a few statements.
// CONTRACT: C-33
func TestOneOutcomeThatTakesTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const events = 100
		store := &oneHangs{memory: newMemory()}
		store.enqueue("orders", events)
		store.id = store.order[0].event.ID
		_, stop := begin(t, store, newConfirmed(1, succeeds), dispatcher.Config{Lease: time.Minute})
		took := passes(t, 30*time.Second, "all others are delivered", func() bool { return store.count("orders", "delivered") == events-1 })
		t.Logf("delivered in %v", took)
		stop()
	})
}
