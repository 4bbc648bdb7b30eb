package engine

import (
	"slices"
	"time"

	"github.com/google/uuid"
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

// insert queues a row.
func (q *topicQueue) insert(r *row) {
	if !q.fair {
		q.rows = append(q.rows, r)
		return
	}
	if len(q.rows) == 0 {
		q.turns.now, q.turns.last = 0, map[uuid.UUID]int{}
	}
	tenant := r.event.TenantID.UUID
	r.turn = max(q.turns.now, q.turns.last[tenant]) + 1
	q.turns.last[tenant] = r.turn
	if len(q.turns.last) > 1 || len(q.ofTenant) > 1 || len(q.ofTenant) == 1 && q.ofTenant[tenant] == 0 {
		q.turns.mixed = r.claimedAt
	}
	at, _ := slices.BinarySearchFunc(q.rows, r.turn+1, func(other *row, turn int) int { return other.turn - turn })
	q.rows = slices.Insert(q.rows, at, r)
}

// beginTurn notes that rows have left the queue for a call, and endTurn that the call has ended.
func (q *topicQueue) beginTurn(rows []*row) {
	if !q.fair {
		return
	}
	for _, r := range rows {
		tenant := r.event.TenantID.UUID
		if q.ofTenant[tenant]++; q.turns.last[tenant] == r.turn {
			delete(q.turns.last, tenant)
		}
	}
	if len(q.rows) > 0 {
		q.turns.now = q.rows[0].turn - 1
	}
}

func (q *topicQueue) endTurn(rows []*row) {
	if !q.fair {
		return
	}
	for _, r := range rows {
		tenant := r.event.TenantID.UUID
		if q.ofTenant[tenant]--; q.ofTenant[tenant] == 0 {
			delete(q.ofTenant, tenant)
		}
	}
}

// nextTenant is the place of the first row whose tenant has less than its part of so many rows in delivery, or none of the last
// calls: a tenant whose calls hang has only as many as another. ok is false when no queued row is of such a tenant.
func (q *topicQueue) nextTenant(rows int, last bool, now time.Time) (place int, ok bool) {
	if !q.fair || now.Sub(q.turns.mixed) > rememberFor {
		return 0, true
	}
	tenants := len(q.turns.last)
	for tenant := range q.ofTenant {
		if q.turns.last[tenant] == 0 {
			tenants++
		}
	}
	part := max(1, rows/max(1, tenants))
	if last {
		part = 1
	}
	place = slices.IndexFunc(q.rows, func(r *row) bool { return q.ofTenant[r.event.TenantID.UUID] < part })
	return max(0, place), place >= 0
}

// moveFirst makes the row at a place the first one.
func (q *topicQueue) moveFirst(place int) {
	r := q.rows[place]
	copy(q.rows[1:place+1], q.rows[:place])
	q.rows[0] = r
}

// withTheirShare are the tenants with as many queued rows as their share of so many.
func (q *topicQueue) withTheirShare(rows int) (tenants []uuid.UUID) {
	queued := map[uuid.UUID]int{}
	for _, r := range q.rows {
		queued[r.event.TenantID.UUID]++
	}
	for tenant, n := range queued {
		if n >= max(1, rows/len(queued)) {
			tenants = append(tenants, tenant)
		}
	}
	return tenants
}
