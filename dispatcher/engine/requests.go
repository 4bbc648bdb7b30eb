package engine

import (
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Pauses that a destination requests (CONTRACT C-39). One response says something of its event, and of that event's tenant: a
// destination limits each tenant more often than all. The topic waits once another tenant's event is to wait too, and
// nothing of it was delivered since the first call began.

const (
	// mostRequestedWait bounds how long a topic or a tenant waits when its destination requests it. A topic may have several
	// destinations, and one call in a minute floods none of them.
	mostRequestedWait = time.Minute
	// mostPausedTenants bounds the tenants of a topic that are remembered. Of others each event waits by itself.
	mostPausedTenants = 64
	// postponedWait is how long the next claim of a topic waits for each row of the last one, if all were of tenants that wait:
	// they are claimed and given back once in a pause, 5,000 a second.
	postponedWait = 200 * time.Microsecond
)

// requests are what the destination of a topic requested.
type requests struct {
	// The first event that was to wait since one of the topic was delivered, and its tenant; the zero UUID for none.
	first   uuid.UUID
	tenant  uuid.NullUUID
	tenants map[uuid.UUID]time.Time // until when each waits
}

// requested follows the request that an event waits. It returns the rows whose delivery has not begun and that wait too: they
// must be released.
func (f *flight) requested(c call, r *row, wait time.Duration, now time.Time) []*row {
	wait = min(wait, mostRequestedWait)
	t, id, tenant := c.topic, r.event.ID, r.event.TenantID
	q := &t.calls.requests
	switch {
	case !t.breaker.deliveredAt.Before(c.began): // it takes others
	case q.first == uuid.Nil:
		q.first, q.tenant = id, tenant
	case q.first != id && (!tenant.Valid || q.tenant != tenant):
		f.waitFor(t, wait, now)
	}
	q.waiting(now) // forgets what is over
	if tenant.Valid && len(q.tenants) < mostPausedTenants {
		if q.tenants == nil {
			q.tenants = map[uuid.UUID]time.Time{}
		}
		q.tenants[tenant.UUID] = now.Add(wait)
	}
	return f.postpone(t, now)
}

// waiting lists the tenants that wait.
func (q *requests) waiting(now time.Time) []uuid.UUID {
	maps.DeleteFunc(q.tenants, func(_ uuid.UUID, until time.Time) bool { return !now.Before(until) })
	return slices.Collect(maps.Keys(q.tenants))
}

// postpone takes the queued rows of tenants that wait out of the flight, and those behind them in the lines of their keys.
func (f *flight) postpone(t *topic, now time.Time) (rows []*row) {
	if len(t.calls.requests.waiting(now)) == 0 {
		return nil
	}
	t.queue.rows = slices.DeleteFunc(t.queue.rows, func(r *row) bool {
		until, ok := t.calls.requests.tenants[r.event.TenantID.UUID]
		if ok = ok && r.event.TenantID.Valid; ok {
			r.wait = until.Sub(now)
			rows = append(append(rows, r), f.queue.keys.leave(r)...)
		}
		return ok
	})
	f.queue.waiting = slices.DeleteFunc(f.queue.waiting, nothingQueued)
	f.account.leave(rows...)
	f.signals.happened()
	return rows
}
