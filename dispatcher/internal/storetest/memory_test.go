package storetest

import "testing"

func TestMemoryPassesTheExercise(t *testing.T) {
	t.Parallel()
	for name, deletes := range map[string]bool{"Kept": false, "DeletedAtAck": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			exercise(t, func(*testing.T) Outbox {
				m := NewMemory()
				m.DeleteDelivered = deletes
				return m
			}, deletes)
		})
	}
}
