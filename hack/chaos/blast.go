package main

import (
	"net/http"
	"slices"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
)

// unreadableType is the event type of rows that no dispatcher can decode.
const unreadableType = "OrderUnreadable"

// checkDeadLetters checks that each dead letter has its record, and that an event is dead for what is wrong with itself: one
// that cannot be decoded as poison, one that the consumer always refuses of that, and any other only of
// attempts that the consumer refused one by one: of 404, which is the event's own. An outage kills none (CONTRACT C-32, C-33, C-41).
func (l *ledger) checkDeadLetters(h *history, e *event) {
	if dead, replays := e.count(toDead), e.count(replay); e.deadLetters != dead || e.replayed != replays {
		l.violate(unrecorded, e, "%d dead letters for %d times dead, %d of them replayed for %d replays", e.deadLetters, dead, e.replayed, replays)
	}
	if e.eventType == unreadableType && len(e.deliveries) > 0 {
		l.violate(misjudged, e, "it cannot be decoded, and was delivered")
	}
	for i, m := range e.moves {
		if m.verb != toDead {
			continue
		}
		if e.sent == 0 && e.eventType != unreadableType {
			l.violate(neverSent, e, "%s after %d attempts", m.reason, m.to.attempts)
		}
		spent := m.reason == "max_retries_exceeded" || m.reason == "processing_timeout"
		switch {
		case e.eventType == unreadableType && m.reason == "poison_message":
		case e.eventType == scenario.PoisonType && (spent || m.reason == "permanent_failure"):
		case spent && e.eventType != unreadableType:
			if h.overlapping(e.budgetFrom(i), m.at, func(f injected) bool { return f.kind == refuse && f.status == http.StatusNotFound }) == "" {
				l.violate(starved, e, "%s", m.reason)
			}
		default:
			l.violate(misjudged, e, "%s is dead with %s", e.eventType, m.reason)
		}
	}
}

// budgetFrom is when the attempts began that were spent at a transition.
func (e *event) budgetFrom(i int) (at time.Time) {
	for _, m := range e.moves[:i] {
		if m.verb == insert || m.verb == replay {
			at = m.at
		}
	}
	return at
}

// checkOthers checks that an odd row, or an outcome that the database refuses, does not stop the others: while
// nothing else was wrong, the consumer never waited for longer than the rows of a killed dispatcher do
// (CONTRACT C-33).
func (l *ledger) checkOthers(h *history) {
	for _, f := range h.faults {
		if f.kind != unreadable && f.kind != veto && f.kind != unclaimed {
			continue
		}
		last := f.start
		for _, at := range append(slices.Clone(h.arrivals), f.end) {
			if at.After(f.end) || at.Before(last) {
				continue
			}
			elsewhere := func(o injected) bool { return slices.Contains(foreground, o.kind) || o.kind == stall }
			if at.Sub(last) > h.bound && h.overlapping(last.Add(-h.bound), at, elsewhere) == "" {
				l.violate(stoodStill, nil, "from %s to %s, during %s (%s)", last.Format(clockTime), at.Format(clockTime), f.kind, f.note)
			}
			last = at
		}
	}
}
