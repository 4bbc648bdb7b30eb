package main

import (
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/hack/scenario"
)

type delivery = scenario.Delivery

// line names those events that are in order with this one.
func (e *event) line() string { return e.topic + "/" + e.key }

// last is the event's last transition of that kind.
func (e *event) last(v verb) (found move, ok bool) {
	for _, m := range e.moves {
		if m.verb == v {
			found, ok = m, true
		}
	}
	return found, ok
}

// attempt tells of the claim that gave an attempt its number, the last one before a time, when that was
// and by whom, when its row left the lease, and whether that was by an ack. The times are zero when the
// witness knows of none: a crash undid it, and the same number is given again.
func (e *event) attempt(n int, before time.Time) (from, to time.Time, worker uuid.UUID, acked bool) {
	for _, m := range e.moves {
		switch {
		case m.to.status == "processing" && m.to.attempts == n && !m.at.After(before):
			from, to, worker, acked = m.at, endless, m.to.worker, false
		case m.from.status == "processing" && m.from.attempts == n && to.Equal(endless):
			to, acked = m.at, m.verb == ack
		}
	}
	return from, to, worker, acked
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

// claimed is when the transaction of its first claim began: what was committed before, the claim saw.
func (e *event) claimed() time.Time {
	for _, m := range e.moves {
		if m.verb == claim {
			return m.began
		}
	}
	return time.Time{}
}

// over is when the later ones of its key need no longer wait for it.
func (e *event) over() time.Time {
	at := e.arrived()
	if at.IsZero() {
		at = endless
	}
	if death, dead := e.last(die); dead && death.at.Before(at) {
		at = death.at
	}
	return at
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
