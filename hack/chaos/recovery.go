package main

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
)

// recovery is how one fault was got over. unknown where other faults came too near.
type recovery struct {
	fault injected
	// held is the number of events that the victim held, or any dispatcher when the database was the
	// victim, and rows how long after the fault the last of them was delivered and acked.
	held int
	rows time.Duration
	last *event // that one
	// backlog reports whether more events waited when the fault began than are delivered in a second.
	backlog bool
}

const unknown = time.Duration(math.MinInt64)

// recoveries measures the recovery from every fault of the foreground: from the end of an outage, else from the
// start of the fault.
func recoveries(h *history, t times) []recovery {
	var all []recovery
	for _, f := range h.faults {
		if !slices.Contains(foreground, f.kind) || slices.Contains([]kind{refuse, hang, restart, mute, gateway, partly}, f.kind) {
			continue
		}
		r := recovery{fault: f, rows: unknown}
		if h.alone(f, t.bound()) {
			from := f.end
			if h.copies == nil && (f.kind == kill || f.kind == stop || f.kind == freeze || f.kind == choke) { // else no other one may take its place
				from = f.start
			}
			r.held, r.rows, r.last = h.rowsBack(f, from)
			r.backlog = float64(h.waiting(f.start)) > float64(len(h.arrivals))/h.ended.Sub(h.began).Seconds()
		}
		all = append(all, r)
	}
	return all
}

// alone reports whether no other fault of the foreground was near, but for stops: nothing needs to
// recover from one.
func (h *history) alone(f injected, bound time.Duration) bool {
	for _, o := range h.faults {
		if o != f && o.kind != stop && slices.Contains(foreground, o.kind) && o.start.Before(f.end.Add(bound)) && f.start.Before(o.end.Add(bound)) {
			return false
		}
	}
	return true
}

// rowsBack looks at the rows that the fault's victim held when it began. One that waits afterwards since it
// found an unreachable consumer counts: it was there.
func (h *history) rowsBack(f injected, from time.Time) (held int, took time.Duration, slowest *event) {
	var last time.Time
	failing := h.failing(f.start)
	for _, e := range h.events {
		var over time.Time
		mine := false
		for i, m := range e.moves {
			hit := f.worker == uuid.Nil || m.from.worker == f.worker
			if f.kind == choke && e.eventType == bulkyType && m.verb == insert && m.at.Before(f.start) && m.at.After(f.start.Add(-h.bound)) {
				mine = true // the claim that hangs may have it
			}
			if m.from.status == "processing" && hit && m.at.After(f.start) && i > 0 && e.moves[i-1].at.Before(f.start) { // then it was claimed
				mine = true
			}
			if m.verb == ack {
				over = m.at
			}
		}
		if mine && e.count(nack)+e.count(toDead) == 0 && !failing[e.line()] && !h.isHalfDown(e) { // else it waits for a backoff too
			held++
			if over.After(last) {
				last, slowest = over, e
			}
		}
	}
	return held, max(0, last.Sub(from)), slowest
}

// waiting is how many events of flowing keys were pending at a moment.
func (h *history) waiting(at time.Time) (n int) {
	failing := h.failing(at)
	for _, e := range h.events {
		var last state
		for _, m := range e.moves {
			if m.at.Before(at) {
				last = m.to
			}
		}
		if last.status == "pending" && e.count(nack)+e.count(toDead) == 0 && !failing[e.line()] && !h.isHalfDown(e) {
			n++
		}
	}
	return n
}

// failing are the keys of which some event was refused when a fault began or soon after: in order per
// key, the later ones wait for it.
func (h *history) failing(began time.Time) map[string]bool {
	keys := map[string]bool{}
	for _, e := range h.events {
		for _, m := range e.moves {
			if h.ordered && e.key != "" && m.verb == nack && m.at.After(began.Add(-time.Second)) && m.at.Before(began.Add(20*time.Second)) {
				keys[e.line()] = true
			}
		}
	}
	return keys
}

// tardy reports the recoveries that took longer than is promised: a killed dispatcher's rows wait for
// their lease and the next poll, those of one that stopped in order for nothing. While the machine
// stood still or behind a backlog nothing is promised, and time in which no dispatcher ran does not count.
func tardy(h *history, all []recovery, t times) (found []recovery) {
	for _, r := range all {
		if r.rows == unknown || r.backlog {
			continue
		}
		from := r.fault.start
		to := from.Add(r.rows)
		took := r.rows - h.unattended(from, to)
		switch {
		case h.overlapping(from, to, func(f injected) bool { return f.kind == stall }) != "":
		case (r.fault.kind == kill || r.fault.kind == choke) && took > t.bound(),
			r.fault.kind == stop && took > t.poll+slack:
			found = append(found, r)
		}
	}
	return found
}

// unattended is how long, in a span of time, no dispatcher ran.
func (h *history) unattended(from, to time.Time) (sum time.Duration) {
	changes := []time.Time{from, to}
	for _, f := range h.faults {
		for _, at := range []time.Time{f.start, f.end} {
			if at.After(from) && at.Before(to) {
				changes = append(changes, at)
			}
		}
	}
	slices.SortFunc(changes, time.Time.Compare)
	for i, at := range changes[1:] {
		if h.running(changes[i]) == 0 {
			sum += at.Sub(changes[i])
		}
	}
	return sum
}

// running is how many dispatchers ran at a moment: those of the slots, and one more at times.
func (h *history) running(at time.Time) int {
	n, more := h.dispatchers, map[uuid.UUID]bool{}
	for _, f := range h.faults {
		if f.kind == scale || f.kind == clock {
			more[f.worker] = true
		}
	}
	for _, f := range h.faults {
		if at.Before(f.start) || !at.Before(f.end) {
			continue
		}
		switch {
		case f.kind == scale || f.kind == clock:
			n++
		case (f.kind == kill || f.kind == stop || f.kind == freeze || f.kind == choke || f.kind == nap) && !more[f.worker]:
			n--
		}
	}
	return n
}

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
		if busiest || e.eventType != placedType || len(e.moves) == 0 || cmp.Or(e.original, e).moves[0].to.waits || e.committedAt.IsZero() || e.arrived().IsZero() ||
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
// backlog takes up to twice as long as the outage before it, and the long outages that come meanwhile add theirs.
func (h *history) hits(f injected, e *event) bool {
	over := f.end.Add(h.bound + 2*f.end.Sub(f.start))
	for _, next := range h.faults {
		if f.kind == gateway && next.kind == gateway && next.start.After(f.start) && next.start.Before(over) {
			over = over.Add(3 * next.end.Sub(next.start))
		}
	}
	switch {
	case e.committedAt.Before(f.start.Add(-wanted)) || e.committedAt.After(over), f.kind == slow, f.kind == stop:
		return false
	case f.kind == partly:
		return e.tenant == throttled
	case f.topic != "":
		return f.topic == e.topic
	case f.kind == veto || f.kind == unclaimed: // their keys
		return h.ordered && len(e.key) == len("customer-0") && e.key < "customer-5"
	}
	return slices.Contains(foreground, f.kind) || f.kind == stall || f.kind == nap
}

// verb is what made a transition, as far as the row reports.
type verb string

const (
	insert   verb = "insert"
	claim    verb = "claim"
	reclaim  verb = "claim again"
	ack      verb = "ack"
	nack     verb = "nack"
	release  verb = "release"
	postpone verb = "postpone" // a release that waits
	toDead   verb = "dead"
	replay   verb = "replay"
	withdraw verb = "withdraw"
	expire   verb = "expire"
	illegal  verb = "illegal"
)

// verbOf names a transition of a row by the state machine of package dispatcher; illegal is one that it
// does not have. Nothing here extends a lease or counts a suspect (the witness leaves that out), or removes a row that was delivered. That a claim's
// lease number is a new one is a rule of its own: see ledger.
func verbOf(from, to state) verb {
	gain := to.attempts - from.attempts
	free := to.worker == state{}.worker && to.until.IsZero()
	same := to.lease == from.lease
	switch [2]string{from.status, to.status} {
	case [2]string{"", "pending"}:
		return legal(insert, to.attempts == 0 && to.lease == 0 && free)
	case [2]string{"pending", "processing"}:
		return legal(claim, gain == 1 && !free)
	case [2]string{"processing", "processing"}:
		return legal(reclaim, gain == 0 && !free)
	case [2]string{"processing", "delivered"}:
		return legal(ack, gain == 0 && same && free)
	case [2]string{"processing", ""}: // delete at ack
		return ack
	case [2]string{"processing", "pending"}:
		if gain == 0 {
			return legal(nack, same && free)
		}
		back := release
		if to.waits {
			back = postpone
		}
		return legal(back, gain == -1 && same && free)
	case [2]string{"processing", "dead"}, [2]string{"pending", "dead"}:
		return legal(toDead, gain == 0 && same && free)
	case [2]string{"pending", "withdrawn"}:
		return legal(withdraw, to.attempts == 0 && to.lease == 0 && gain == 0 && same && free)
	case [2]string{"pending", "expired"}, [2]string{"processing", "expired"}:
		return legal(expire, gain == 0 && same && free)
	case [2]string{"expired", ""}:
		return expire
	case [2]string{"withdrawn", ""}: // by retention, where delivered rows are not kept
		return withdraw
	case [2]string{"dead", "pending"}:
		return legal(replay, to.attempts == 0 && same && free)
	default:
		return illegal
	}
}

func legal(v verb, guard bool) verb {
	if guard {
		return v
	}
	return illegal
}
