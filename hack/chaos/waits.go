package main

import (
	"slices"
	"time"
)

// wanted is how long 99 of a hundred events wait at most that no fault hits. A busy machine takes longer, so only that of
// settleWithin is a violation.
const wanted = 5 * time.Second

// checkWaits finds how long the events waited that no fault hit, from their commit: those of other topics, tenants and rows
// than the fault's among them (CONTRACT, "Whose fault it is").
func (l *ledger) checkWaits(h *history) {
	refused := map[string][]injected{} // events that their keys wait for
	for _, e := range h.events {
		if m, ok := e.first(claim); ok && h.ordered && e.count(nack) > 0 {
			refused[e.line()] = append(refused[e.line()], injected{kind: kill, start: m.at, end: e.over()})
		}
	}
	l.waits = map[string][]time.Duration{}
	for _, e := range h.events {
		hit := func(f injected) bool { return h.hits(f, e) }
		busiest := h.ordered && e.key == "customer-0" // one after the other is all that it may have
		if busiest || e.eventType != placedType || len(e.moves) == 0 || e.moves[0].to.waits || e.committedAt.IsZero() || e.arrived().IsZero() ||
			slices.ContainsFunc(h.faults, hit) || slices.ContainsFunc(refused[e.line()], hit) {
			continue
		}
		l.waits[e.topic] = append(l.waits[e.topic], max(0, e.arrived().Sub(e.committedAt)))
	}
	for topic, all := range l.waits {
		slices.Sort(all)
		if p99 := all[len(all)*99/100]; p99 > settleWithin {
			l.violate(heldUp, nil, "one event of topic %q in a hundred waited for %s", topic, p99)
		}
	}
}

// hits reports whether a fault was near when an event was committed, and is not another topic's, tenant's or row's. A
// backlog takes up to twice as long as the outage before it.
func (h *history) hits(f injected, e *event) bool {
	over := f.end.Add(h.bound + 2*f.end.Sub(f.start))
	switch {
	case e.committedAt.Before(f.start.Add(-wanted)) || e.committedAt.After(over), f.kind == slow, f.kind == stop:
		return false
	case f.kind == partly:
		return e.tenant == throttled
	case f.kind == refuse && f.topic != "":
		return f.topic == e.topic
	case f.kind == veto || f.kind == unclaimed: // their keys
		return h.ordered && len(e.key) == len("customer-0") && e.key < "customer-5"
	}
	return slices.Contains(foreground, f.kind) || f.kind == stall || f.kind == nap
}
