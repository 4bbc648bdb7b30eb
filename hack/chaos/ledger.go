package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
)

// ledger is the verdict on a run.
type ledger struct {
	committed, rolledBack, delivered, duplicates int
	dead                                         map[string]int
	// explained counts the deliveries whose outcome was lost to a fault, by its kind.
	explained  map[kind]int
	violations []violation
}

// violation is a rule that was broken, and the event with which.
type violation struct {
	rule  string
	event *event // nil when it is not about one
	what  string
}

// rules that a run can break.
const (
	lost        = "lost"
	ghost       = "delivered without a commit"
	unlawful    = "illegal transition"
	doubleAck   = "an attempt acked twice"
	hollowAck   = "acked without a delivery"
	overspent   = "more attempts than allowed"
	early       = "claimed again before the lease was over"
	abandoned   = "left to its lease by a dispatcher that was stopped in order"
	tokenTwice  = "fencing token repeated"
	unexplained = "delivery without ack, and no fault explains it"
	inverted    = "keys out of order"
	broken      = "process"
)

// balance decides.
func balance(h *history) *ledger {
	l := &ledger{dead: map[string]int{}, explained: map[kind]int{}}
	for _, what := range h.wrong {
		l.violate(broken, nil, "%s", what)
	}
	for _, id := range slices.SortedFunc(maps.Keys(h.events), func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }) {
		e := h.events[id]
		l.account(e)
		l.followRow(e)
		l.checkStops(h, e)
		l.explain(h, e)
	}
	if h.ordered {
		l.checkOrder(h)
	}
	return l
}

func (l *ledger) violate(rule string, e *event, format string, args ...any) {
	l.violations = append(l.violations, violation{rule, e, fmt.Sprintf(format, args...)})
}

// account checks that a committed event arrived or is dead, and that no other arrived.
func (l *ledger) account(e *event) {
	if e.known && !e.committed || !e.known && len(e.moves) == 0 {
		l.rolledBack++
		if len(e.deliveries)+len(e.moves) > 0 {
			l.violate(ghost, e, "%d deliveries, %d transitions", len(e.deliveries), len(e.moves))
		}
		return
	}
	l.committed++
	if n := len(e.deliveries); n > 1 {
		l.duplicates += n - 1
	}
	_, acked := e.last(ack)
	death, dead := e.last(die)
	switch {
	case acked && len(e.deliveries) > 0:
		l.delivered++
	case dead:
		cause := "out of attempts"
		if death.from.attempts < maxAttempts {
			cause = "refused for good"
		}
		l.dead[cause]++
	default:
		l.violate(lost, e, "committed, and neither delivered nor dead")
	}
}

// followRow checks each transition, and each ack against what the consumer confirmed.
func (l *ledger) followRow(e *event) {
	acked := map[int]int{}
	for i, m := range e.moves {
		switch {
		case m.verb == illegal, i > 0 && m.from.status != e.moves[i-1].to.status, i > 0 && m.from.attempts != e.moves[i-1].to.attempts:
			l.violate(unlawful, e, "%+v to %+v", m.from, m.to)
		case m.verb == reclaim && !m.from.until.Before(m.at):
			l.violate(early, e, "attempt %d at %s, while the lease of %s ran until %s", m.to.attempts, m.at, m.from.worker, m.from.until)
		case m.verb == ack:
			if acked[m.from.attempts]++; acked[m.from.attempts] > 1 {
				l.violate(doubleAck, e, "attempt %d", m.from.attempts)
			}
			if !slices.ContainsFunc(e.deliveries, func(d delivery) bool { return d.Attempt == m.from.attempts }) {
				l.violate(hollowAck, e, "attempt %d", m.from.attempts)
			}
		}
		if m.to.attempts > maxAttempts {
			l.violate(overspent, e, "%d", m.to.attempts)
		}
	}
}

// checkStops checks that a dispatcher that was stopped in order left nothing behind, unless its connections
// broke: then it may not know what it had claimed (CONTRACT C-30).
func (l *ledger) checkStops(h *history, e *event) {
	for _, m := range e.moves {
		if m.verb != reclaim {
			continue
		}
		from, _, _, _ := e.attempt(m.from.attempts, m.at)
		for _, f := range h.faults {
			cutOff := func(o injected) bool { return o.kind == crash || o.kind == cut || o.kind == bouncer || o.kind == stall }
			if f.kind == stop && f.worker == m.from.worker && f.start.Before(m.at) && h.overlapping(from.Add(-forgets), m.at, cutOff) == "" {
				l.violate(abandoned, e, "attempt %d of worker %s, which was stopped at %s", m.from.attempts, m.from.worker, f.start.Format(clockTime))
			}
		}
	}
}

// explain checks that a delivery that the consumer confirmed was acked, or that a fault kept the
// dispatcher from it. Every duplicate has such a delivery before it.
func (l *ledger) explain(h *history, e *event) {
	seen := map[int]time.Time{}
	for _, d := range e.deliveries {
		from, to, worker, acked := e.attempt(d.Attempt, d.At)
		before, repeated := seen[d.Attempt]
		if repeated {
			from = before.Add(-h.lease) // its claim is no older
		} else if from.IsZero() { // the database forgot the claim
			from, to = d.At.Add(-h.lease), d.At.Add(forgets)
		}
		crashed := h.overlapping(from.Add(-forgets), latest(to, d.At), func(f injected) bool { return f.kind == crash })
		switch {
		case repeated && crashed == "":
			l.violate(tokenTwice, e, "%d", d.Attempt)
		case acked && !repeated:
		case crashed != "":
			l.explained[crash]++
		default:
			cause := h.overlapping(from, to, func(f injected) bool {
				return (f.kind == kill || f.kind == freeze) && f.worker == worker || f.kind == hang || f.kind == away || f.kind == stall
			})
			if cause == "" {
				l.violate(unexplained, e, "attempt %d of worker %s, from %s to %s", d.Attempt, worker, from.Format(clockTime), to.Format(clockTime))
				continue
			}
			l.explained[cause]++
		}
		seen[d.Attempt] = d.At
	}
}

// forgets is how much of its last moments a crash of the database may undo: claims and acks do not
// wait for the disk.
const forgets = time.Second

// overlapping is the kind of a fault that overlaps a time and explains a loss; "" for none.
func (h *history) overlapping(from, to time.Time, explains func(injected) bool) kind {
	for _, f := range h.faults {
		if explains(f) && f.start.Before(to) && from.Before(f.end) {
			return f.kind
		}
	}
	return ""
}

// checkOrder checks the first deliveries of each key (CONTRACT C-50): when an event arrives first, each
// earlier one of its key that was committed when this one was claimed has arrived, or is dead.
func (l *ledger) checkOrder(h *history) {
	keys := map[string][]*event{}
	for _, e := range h.events {
		if e.key != "" && e.committed {
			keys[e.line()] = append(keys[e.line()], e)
		}
	}
	for _, events := range keys {
		slices.SortFunc(events, func(a, b *event) int { return cmp.Compare(a.seq, b.seq) })
		var last time.Time // when the earlier ones were all over
		for i, e := range events {
			if arrived := e.arrived(); !arrived.IsZero() && last.After(arrived) {
				l.checkEarlier(e, events[:i])
			}
			last = latest(last, e.over())
		}
	}
}

func (l *ledger) checkEarlier(e *event, earlier []*event) {
	for _, other := range earlier {
		if other.committedAt.IsZero() || !other.committedAt.Before(e.claimed()) {
			continue // two producers of one key, side by side, have no order
		}
		if over := other.over(); over.After(e.arrived()) {
			l.violate(inverted, e, "key %q: seq %d arrived at %s, and seq %d (%s) arrived or died at %s", e.key, e.seq,
				e.arrived().Format(clockTime), other.seq, other.id, over.Format(clockTime))
		}
	}
}

const clockTime = "15:04:05.000"
