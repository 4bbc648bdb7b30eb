package engine

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// queue is the rows whose delivery may begin, of all topics, and those that wait behind them in the lines of their keys. It
// belongs to a flight, whose lock guards it.
type queue struct {
	waiting []*topic // those with queued rows, the one that was served last at the end
	keys    keys     // which rows wait for others of their key; nil without order
}

// topicQueue is the queued rows of one topic.
type topicQueue struct {
	rows     []*row
	fair     bool // they are in the order of their tenants' turns: see fair.go
	turns    turns
	ofTenant map[uuid.UUID]int // with turns: the rows of each tenant in delivery
	slow     bool              // the first row has waited for longer than longSupply
	together bool              // a call may have rows behind the first of their keys
}

// add queues a row that may be delivered now.
func (q *queue) add(r *row) {
	t := r.topic
	if len(t.queue.rows) == 0 {
		q.waiting = append(q.waiting, t)
	}
	t.queue.together = q.keys.together
	t.queue.insert(r)
}

// behind are the rows that a call may have with a queued one: those behind it in the line of its key.
func (q *topicQueue) behind(r *row) []*row {
	if !q.together || r.line == nil {
		return nil
	}
	return r.line.rows[1:]
}

// ready is how many rows calls may take now, or most if there are more.
func (q *topicQueue) ready(most int) int {
	n := len(q.rows)
	for i := 0; q.together && i < len(q.rows) && n < most; i++ {
		n += len(q.behind(q.rows[i]))
	}
	return min(n, most)
}

// take takes the rows of a call out of a topic's queue, of which they have the first ones. The topic goes to the end of the turn.
func (q *queue) take(t *topic, taken []*row, now time.Time) {
	n := 0
	for _, r := range taken {
		if r.first() {
			n++
		} else {
			r.event.Behind = true
		}
		if r.line != nil && r.line.began.IsZero() {
			r.line.began = now
		}
	}
	clear(t.queue.rows[:n]) // the queue's memory must not keep events that are served
	t.queue.rows = t.queue.rows[n:]
	t.queue.beginTurn(taken)
	at := slices.Index(q.waiting, t)
	q.waiting = slices.Delete(q.waiting, at, at+1)
	if len(t.queue.rows) > 0 {
		q.waiting = append(q.waiting, t)
	} else {
		t.queue.rows = nil // or its memory would keep the events
	}
}

// clear takes out the rows of a topic, or of all for nil.
func (q *queue) clear(t *topic) (rows []*row) {
	of, name := q.waiting, ""
	if t != nil {
		of, name = []*topic{t}, t.name
	}
	for _, t := range of {
		rows = append(rows, t.queue.rows...)
		t.queue.rows = nil
	}
	q.waiting = slices.DeleteFunc(q.waiting, nothingQueued)
	return append(rows, q.keys.disband(name)...)
}

// drop takes out the rows that another worker holds.
func (q *queue) drop() {
	for _, t := range q.waiting {
		t.queue.rows = slices.DeleteFunc(t.queue.rows, (*row).isLost)
	}
	q.waiting = slices.DeleteFunc(q.waiting, nothingQueued)
}

func nothingQueued(t *topic) bool { return len(t.queue.rows) == 0 }

// noteSlow notes which topics' rows wait for long.
func (q *queue) noteSlow(alone bool, now time.Time) {
	for _, t := range q.waiting {
		t.queue.slow = !alone && now.Sub(t.queue.rows[0].claimedAt) > longSupply
	}
}
