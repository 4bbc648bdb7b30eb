package main

import (
	"cmp"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
)

type delivery = scenario.Delivery

// line names those events that are in order with this one.
func (e *event) line() string { return e.topic + "/" + e.key }

// first is the event's first transition of that kind.
func (e *event) first(v verb) (move, bool) {
	for _, m := range e.moves {
		if m.verb == v {
			return m, true
		}
	}
	return move{}, false
}

// count is how many transitions of that kind there are.
func (e *event) count(v verb) (n int) {
	for _, m := range e.moves {
		if m.verb == v {
			n++
		}
	}
	return n
}

// most is how many attempts it has.
func (e *event) attemptLimit() int { return cmp.Or(e.maxAttempts, maxAttempts) }

// holding is what one claim made of a row: from when to when it was leased, by whom, and whether that ended
// with an ack. The times are zero when the witness knows of no such claim: a crash undid it, and its number
// may be given again.
type holding struct {
	from, to time.Time
	worker   uuid.UUID
	acked    bool
}

// held returns the last claim under a lease number that was made before a time.
func (e *event) held(lease int64, before time.Time) (h holding) {
	for _, m := range e.moves {
		switch {
		case m.to.status == "processing" && m.to.lease == lease && !m.at.After(before):
			h = holding{from: m.at, to: endless, worker: m.to.worker}
		case m.from.status == "processing" && m.from.lease == lease && h.to.Equal(endless):
			h.to, h.acked = m.at, m.verb == ack
		}
	}
	return h
}

// endless is later than anything that happens.
var endless = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// arrived is when the consumer confirmed it first; zero for never.
func (e *event) arrived() time.Time {
	if len(e.deliveries) == 0 {
		return time.Time{}
	}
	return e.deliveries[0].At
}

// claimed is when the transaction of its first claim began: what was committed before, the claim saw. A copy has its original's.
func (e *event) claimed() time.Time {
	m, _ := cmp.Or(e.original, e).first(claim)
	return m.began
}

// over is when the later ones of its key need no longer wait for it: a replay comes after those that continued, and so do the copies of
// what is replayed.
func (e *event) over() time.Time {
	at := e.arrived()
	if at.IsZero() {
		at = endless
	}
	for _, of := range []*event{e, cmp.Or(e.original, e)} {
		for _, v := range []verb{toDead, withdraw, expire} {
			if end, is := of.first(v); is && end.at.Before(at) {
				at = end.at
			}
		}
	}
	return at
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
