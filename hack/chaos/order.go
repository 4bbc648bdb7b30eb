package main

import (
	"cmp"
	"slices"
	"time"
)

// checkOrder checks the first deliveries of each key (CONTRACT C-50): when an event arrives first, each
// earlier one of its key that was committed when this one was claimed has arrived, or is dead.
func (l *ledger) checkOrder(h *history) {
	keys := map[string][]*event{}
	for _, e := range h.events {
		if e.key != "" && e.committed && !h.forgotten(e) {
			keys[e.line()] = append(keys[e.line()], e)
		}
	}
	for _, events := range keys {
		slices.SortFunc(events, func(a, b *event) int { return cmp.Compare(a.seq, b.seq) })
		var last time.Time // when the earlier ones were all over
		for i, e := range events {
			if arrived := e.arrived(); !arrived.IsZero() && last.After(arrived) {
				l.checkEarlier(h, e, events[:i])
			}
			last = latest(last, e.over())
		}
	}
}

func (l *ledger) checkEarlier(h *history, e *event, earlier []*event) {
	claimed, arrived := e.claimed(), e.arrived()
	undone := e.held(e.deliveries[0].Token, arrived).from.IsZero() // by a crash or a failover
	if undone {
		claimed = arrived.Add(-h.lease)
	}
	failedOver := undone && h.overlapping(arrived, arrived.Add(forgets), func(f injected) bool { return f.kind == lag }) != ""
	for _, other := range earlier {
		if other.committedAt.IsZero() || !other.committedAt.Before(claimed) {
			continue // two producers of one key, side by side, have no order
		}
		if failedOver && (other.arrived().IsZero() || other.sent >= other.attemptLimit() && other.sent > other.count(claim)+other.count(reclaim)) {
			continue // the failover may have undone that it was dead, too: with its last attempt, when it arrived later
		}
		if over := other.over(); over.After(e.arrived()) {
			l.violate(inverted, e, "key %q: seq %d arrived at %s, and seq %d (%s) arrived or was dead at %s", e.key, e.seq,
				e.arrived().Format(clockTime), other.seq, other.id, over.Format(clockTime))
		}
	}
}
