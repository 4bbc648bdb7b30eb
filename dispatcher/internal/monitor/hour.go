package monitor

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Hour remembers the last hour by minute.
type Hour struct {
	mu   sync.Mutex
	hour *status.Hour
}

// Watch notes each minute until ctx ends. delivered is how many events the process has delivered, and backlog nil, or the last count,
// which is of no use when it is older than a minute.
func (h *Hour) Watch(ctx context.Context, delivered func() int64, backlog func() *dispatcher.Depth) {
	minute := time.NewTicker(time.Minute)
	defer minute.Stop()
	counted, before := time.Time{}, delivered()
	for {
		select {
		case now := <-minute.C:
			pending, all := int64(-1), delivered()
			if depth := backlog(); depth != nil && !depth.ObservedAt.Equal(counted) {
				counted, pending = depth.ObservedAt, Backlog(depth).Pending
			}
			h.note(now, pending, all-before)
			before = all
		case <-ctx.Done():
			return
		}
	}
}

func (h *Hour) note(now time.Time, pending, delivered int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := status.Hour{}
	if h.hour != nil {
		last = *h.hour
	}
	add := func(to []int64, n int64) []int64 { // a reader has the list of before
		return append(slices.Clone(to[max(0, len(to)-status.Minutes+1):]), n)
	}
	h.hour = &status.Hour{Until: status.At(now), Pending: add(last.Pending, pending), Delivered: add(last.Delivered, delivered)}
}

// Get returns it, nil in the first minute.
func (h *Hour) Get() *status.Hour {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hour
}
