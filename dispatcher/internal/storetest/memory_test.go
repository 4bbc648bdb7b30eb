package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

func TestMemoryPassesTheExercise(t *testing.T) {
	t.Parallel()
	for name, deletes := range map[string]bool{"Kept": false, "DeletedAtAck": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			exercise(t, func(*testing.T) Outbox {
				m := NewMemory()
				m.DeleteDelivered = deletes
				return unhurried{m}
			}, deletes)
		})
	}
}

// unhurried makes stores whose claims begin when a lease of a microsecond has expired.
type unhurried struct{ *Memory }

func (u unhurried) Store(namespace string, worker uuid.UUID) dispatcher.Store {
	return unhurriedStore{u.Memory.Store(namespace, worker)}
}

type unhurriedStore struct{ dispatcher.Store }

func (s unhurriedStore) Claim(ctx context.Context, req dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	time.Sleep(2 * gone)
	return s.Store.Claim(ctx, req)
}
