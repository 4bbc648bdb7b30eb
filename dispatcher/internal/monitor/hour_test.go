package monitor

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// The last hour has a number for each minute, sixty at most, and -1 where the backlog was not counted in it.
func TestHourHasANumberForEachMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h Hour
		var delivered atomic.Int64
		delivered.Store(1000)
		var depth atomic.Pointer[dispatcher.Depth]
		go h.Watch(t.Context(), delivered.Load, depth.Load)
		minute := func(n int64) {
			synctest.Wait()
			delivered.Add(n)
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		need.That(t, h.Get() == nil, "before the first minute it is %+v", h.Get())
		minute(7)
		depth.Store(&dispatcher.Depth{ObservedAt: time.Now(), Topics: []dispatcher.TopicDepth{{Pending: dispatcher.Count{N: 40}}, {Pending: dispatcher.Count{N: 2}}}})
		minute(0)
		minute(5) // the database is unreachable: the last count is kept
		got := h.Get()
		need.Want(t, "[-1 42 -1] [7 0 5]", "%s, want %s", fmt.Sprint(got.Pending, got.Delivered))
		need.Want(t, status.At(time.Now()), "until %v, want %v", got.Until)
		depth.Store(&dispatcher.Depth{ObservedAt: depth.Load().ObservedAt.Add(-time.Hour)}) // the database's clock is set back
		minute(1)
		need.Want(t, "[-1 42 -1 0]", "with another clock: %s, want %s", fmt.Sprint(h.Get().Pending))
		for n := range int64(70) {
			minute(n)
		}
		last := h.Get()
		need.That(t, len(last.Delivered) == 60 && len(last.Pending) == 60 && last.Delivered[0] == 10 && last.Delivered[59] == 69, "after 70 more it is %+v", last)
		need.That(t, len(got.Delivered) == 3, "what a reader has is now %+v", got)
	})
}
