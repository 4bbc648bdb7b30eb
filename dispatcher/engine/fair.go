package engine

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// The queue of a topic is in the order of its tenants' turns, with Config.Fairness (CONTRACT C-37): a tenant's first row is
// in the next turn, its second one in the turn after that. While enough rows are queued, claims continue for the tenants
// that have few of them: the flood of one neither fills the queue nor is waited for.

// turns are the turns of a topic's tenants.
type turns struct {
	now   int               // the last one of which all rows began
	last  map[uuid.UUID]int // of each tenant that has queued rows
	mixed time.Time         // when there were several tenants
}

// takeTurns sets whether the tenants of each topic have their turns, of a new flight.
func (f *flight) takeTurns(cfg dispatcher.Config) {
	f.fair = cfg.Fairness == dispatcher.FairnessTenant
	for _, t := range f.byName { // those that the configuration names
		t.fair = f.fair
	}
}

// insert queues a row.
func (t *topic) insert(r *row) {
	if !t.fair {
		t.queued = append(t.queued, r)
		return
	}
	if len(t.queued) == 0 {
		t.turns.now, t.turns.last = 0, map[uuid.UUID]int{}
	}
	tenant := r.event.TenantID.UUID
	r.turn = max(t.turns.now, t.turns.last[tenant]) + 1
	t.turns.last[tenant] = r.turn
	if len(t.turns.last) > 1 || len(t.calls) > 1 || len(t.calls) == 1 && t.calls[tenant] == 0 {
		t.turns.mixed = r.claimedAt
	}
	at, _ := slices.BinarySearchFunc(t.queued, r.turn+1, func(q *row, turn int) int { return q.turn - turn })
	t.queued = slices.Insert(t.queued, at, r)
}

// beginTurn notes that rows have left the queue for a call, and endTurn that the call has ended.
func (t *topic) beginTurn(rows []*row) {
	if !t.fair {
		return
	}
	for _, r := range rows {
		tenant := r.event.TenantID.UUID
		if t.calls[tenant]++; t.turns.last[tenant] == r.turn {
			delete(t.turns.last, tenant)
		}
	}
	if len(t.queued) > 0 {
		t.turns.now = t.queued[0].turn - 1
	}
}

func (t *topic) endTurn(rows []*row) {
	if !t.fair {
		return
	}
	for _, r := range rows {
		tenant := r.event.TenantID.UUID
		if t.calls[tenant]--; t.calls[tenant] == 0 {
			delete(t.calls, tenant)
		}
	}
}

// yields reports whether the last calls are left to tenants without one, and none of these has a row in the next turn. If
// one has, its row becomes the next.
func (t *topic) yields(now time.Time) bool {
	if !t.fair || now.Sub(t.turns.mixed) > rememberFor {
		return false
	}
	for i, r := range t.queued {
		if r.turn > t.queued[0].turn {
			break
		}
		if t.calls[r.event.TenantID.UUID] == 0 {
			copy(t.queued[1:i+1], t.queued[:i])
			t.queued[0] = r
			return false
		}
	}
	return true
}

// crowd are the tenants with as many queued rows as their share of so many.
func (t *topic) crowd(rows int) (tenants []uuid.UUID) {
	queued := map[uuid.UUID]int{}
	for _, r := range t.queued {
		queued[r.event.TenantID.UUID]++
	}
	for tenant, n := range queued {
		if n >= max(1, rows/len(queued)) {
			tenants = append(tenants, tenant)
		}
	}
	return tenants
}

// leaveCrowd takes the tenants out of a claim that have their share of the queue.
func (f *flight) leaveCrowd(shares []dispatcher.Share) {
	for i := range shares {
		shares[i].Except = f.get(shares[i].Topic).crowd(f.lowShare())
	}
}
