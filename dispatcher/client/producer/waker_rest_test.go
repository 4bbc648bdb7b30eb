package producer

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// Two calls after a quiet time notify at once, and more wait for their turn: one a millisecond.
func TestWakerNotifiesOnceAMillisecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var sent []time.Duration
		w := buildWaker(WakerOptions{}, func(context.Context, string, string) error {
			sent = append(sent, time.Since(began))
			return nil
		})
		const ms = time.Millisecond
		for _, at := range []time.Duration{0, ms / 10, ms / 5, ms / 4, 5 * ms / 2, 3 * ms, 10 * ms, 10*ms + 1, 10*ms + 2} {
			time.Sleep(at - time.Since(began))
			w.Wake("shop")
			synctest.Wait()
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if want := []time.Duration{0, ms / 10, ms, 5 * ms / 2, 3 * ms, 10 * ms, 10*ms + 1, 11 * ms}; !slices.Equal(sent, want) {
			t.Errorf("notifications were sent at %v, want %v", sent, want)
		}
	})
}
