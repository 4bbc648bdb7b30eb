package engine

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// How many rows a topic may have: of a claim, and in flight. How many calls is in calls.go.
//
// A topic whose destination does not respond must not delay the others (CONTRACT C-32), and whether it will
// respond is known too late. So while there are other topics, each leaves them a part of what all share: of the
// calls, and of the rows and bytes in flight. An eighth of the bytes is for topics that have nothing in flight. A topic that is
// alone may take everything else.

// limit is what keeps a topic from having more.
type limit string

const (
	unlimited  limit = ""            // it may have all of a claim
	byBreaker  limit = "destination" // it is paused: nothing is claimed but half-open probes
	byRequest  limit = "request"     // its destination requested a pause
	byProbe    limit = "probe"       // a half-open probe is due once the destination has succeeded with something
	byGate     limit = "gate"        // the type of its next event is not admitted: one row is claimed now and then
	bySlowness limit = "slowness"    // its queued rows wait for long, and are as many as its share
	byClaims   limit = "claims"      // the database refuses its claims, or takes too long over them
	byOutcomes limit = "outcomes"    // the database refuses what is to be written back of its rows, or takes too long over it
	byRate     limit = "rate"        // its rate limit or the dispatcher's is used, and enough rows wait for it
	byRows     limit = "rows"        // it has more rows in flight than it leaves
	byBytes    limit = "bytes"       // it has more bytes in flight than it leaves; those of stuck calls count
)

// allotment is how many rows of a topic the next claim may take, or how many calls more it may have.
type allotment struct {
	n    int
	by   limit
	next time.Time // when it may be more; zero when time alone changes nothing
}

// least lowers an allotment to what a limit allows.
func (a *allotment) least(n int, by limit, next time.Time) {
	if n = max(0, n); n < a.n {
		a.n, a.by, a.next = n, by, next
	}
}

// load is what all topics share, as far as it is free.
type load struct {
	now       time.Time
	alone     bool
	rows      int             // that may still come into flight
	bytes     int64           // likewise
	rate      allotment       // by the dispatcher's rate limit
	spare     int64           // bytes that topics with rows in flight leave
	lowShare  int             // queued rows of a slow topic
	successes int             // of the destination
	unwritten map[string]bool // topics whose outcomes the database refuses, or takes too long over
}

// isShort reports whether the bytes that are free are those for topics with nothing in flight.
func (l load) isShort() bool { return !l.alone && l.bytes <= l.spare }

// largeAfter is how long no claim brings a row until one is claimed whatever its size: calls that are stuck may keep the bytes for ever.
const largeAfter = 15 * time.Second

// mayBeLarge reports whether a topic's first row may be larger than the bytes that are free: its calls are short, so it gives them back
// soon, or nothing else is claimed.
func (o *round) mayBeLarge(t *topic, now time.Time) bool {
	return t.calls.time.typical > 0 && t.calls.time.typical < shortCall || now.Sub(o.foundAt) >= largeAfter
}

// allot says how much of a topic may be claimed now.
func (t *topic) allot(l load) allotment {
	a := allotment{n: math.MaxInt}
	if t.breaker.state != dispatcher.BreakerClosed {
		switch rows := t.breaker.halfOpenLimit(l.now); {
		case rows == 0:
			a.least(0, byBreaker, t.breaker.next)
		case t.breaker.state == dispatcher.BreakerUnreachable && t.successes == l.successes:
			a.least(0, byProbe, time.Time{})
		default:
			a.least(rows, byBreaker, time.Time{})
		}
	}
	if l.now.Before(t.calls.pausedUntil) {
		a.least(0, byRequest, t.calls.pausedUntil)
	}
	if t.gate != nil && !t.gate.open {
		if l.now.Before(t.gate.next) {
			a.least(0, byGate, t.gate.next)
		} else {
			a.least(1, byGate, time.Time{})
		}
	}
	if t.doubt != nil && l.now.Before(t.doubt.next) {
		a.least(0, byClaims, t.doubt.next)
	}
	if l.unwritten[t.name] {
		a.least(0, byOutcomes, time.Time{})
	}
	for _, rate := range []allotment{l.rate, t.rate.supply(t.rows.all-t.rows.inDelivery, len(t.queue.rows), l.now)} {
		if rate.by == byRate {
			a.least(rate.n, byRate, rate.next)
		}
	}
	if l.alone {
		if l.bytes < l.spare { // another topic may come while calls of this one are stuck
			a.least(0, byBytes, time.Time{})
		}
		return a
	}
	if t.queue.slow && len(t.queue.rows) >= l.lowShare {
		a.least(0, bySlowness, time.Time{})
	}
	if t.rows.all > l.rows {
		a.least(0, byRows, time.Time{})
	}
	if t.rows.bytes > 0 && t.rows.bytes > l.bytes-l.spare || l.isShort() && t.breaker.state != dispatcher.BreakerClosed {
		a.least(0, byBytes, time.Time{})
	}
	return a
}

// hasItsShare reports whether a topic gets nothing until something of it leaves the flight.
func (a allotment) hasItsShare() bool {
	return a.by == bySlowness || a.by == byRows || a.by == byBytes
}

// quietRows is how many rows of a claim are left to quiet topics, within an eighth and a half of it. Claims are small
// while deliveries are slow. Then the busy topics do not need the rows, and the quiet ones should not wait for many
// claims.
const quietRows = 16

// shares divides a claim of n rows. A topic that had rows last time is busy. Every claim has shares for the busy ones,
// which divide most of it, and for a few of the quiet ones in turn. A round has every topic, in several claims when
// there are many. So a million rows of one topic delay no event of another for longer than a round, and a hundred quiet
// topics leave the busy one its share.
func (ts *topics) shares(n int, l load) []dispatcher.Share {
	if l.rate.by == byRate {
		n = min(n, l.rate.n)
	}
	if n == 0 || len(ts.round.topics) == 0 {
		return nil
	}
	if ts.round.left == 0 {
		ts.round.left, ts.round.full = len(ts.round.topics), nil
	}
	if l.isShort() { // what is claimed must fit: a row that is too large keeps no other topic waiting
		parts := ts.round.takeTurns(1, false, l)
		divide(parts, n)
		return sharesOf(ts.round.apart(parts, l.now))
	}
	forQuiet := n
	var busy []part
	if n > 1 && slices.ContainsFunc(ts.round.topics, (*topic).busy) {
		forQuiet = max(n/8, min(n/2, quietRows))
		busy, _ = ts.round.takeFrom(&ts.round.firstBusy, len(ts.round.topics), n-forQuiet, (*topic).busy, l)
	}
	quiet := ts.round.takeTurns(forQuiet, n > 1, l)
	switch {
	case len(busy) == 0:
		forQuiet = n
	case len(quiet) == 0:
		forQuiet = 0
	}
	divide(busy, n-forQuiet)
	divide(quiet, forQuiet)
	return sharesOf(ts.round.apart(append(quiet, busy...), l.now))
}

// sharesOf is a claim of these parts.
func sharesOf(parts []part) (shares []dispatcher.Share) {
	for _, p := range parts {
		p.topic.turn.halfOpen = p.topic.breaker.state != dispatcher.BreakerClosed
		if p.max > p.rows {
			p.topic.limits.cutBy = unlimited
		}
		shares = append(shares, dispatcher.Share{Topic: p.topic.name, Limit: min(p.rows, p.max)})
	}
	return shares
}

// part is a topic's part of a claim: rows, and the most that it may have.
type part struct {
	topic     *topic
	rows, max int
}

func (t *topic) busy() bool { return t.turn.expected > 0 }

// takeTurns takes up to n of the topics that this round has not looked at, without the busy ones unless
// they have no parts of their own.
func (o *round) takeTurns(n int, exceptBusy bool, l load) []part {
	parts, passed := o.takeFrom(&o.next, o.left, n, func(t *topic) bool { return !exceptBusy || !t.busy() }, l)
	o.left -= passed
	return parts
}

// takeFrom takes up to n of so many topics that follow one, and passes by those that are not wanted. The first is another one each
// time, since it gets the odd rows and, when bytes are short, the bytes.
func (o *round) takeFrom(first *int, of, n int, wanted func(*topic) bool, l load) (parts []part, passed int) {
	for ; passed < of && len(parts) < n; passed++ {
		if t := o.topics[(*first+passed)%len(o.topics)]; wanted(t) {
			parts = o.take(parts, t, l)
		}
	}
	*first = (*first + max(1, passed%len(o.topics))) % len(o.topics)
	return parts, passed
}

// take adds a topic that may have rows.
func (o *round) take(parts []part, t *topic, l load) []part {
	a := t.allot(l)
	if a.hasItsShare() {
		o.full = append(o.full, t)
	}
	if t.limits.cutBy = a.by; a.n == 0 {
		return parts
	}
	return append(parts, part{t, 0, a.n})
}

// divide gives n rows to the parts: none gets less than an equal part while another gets more than its topic is
// expected to have.
func divide(parts []part, n int) {
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(a.topic.turn.expected, b.topic.turn.expected) })
	for i := range parts {
		left := len(parts) - i
		rows := (n + left - 1) / left
		if expected := parts[i].topic.turn.expected; expected > 0 && left > 1 {
			rows = min(rows, expected)
		}
		parts[i].rows = rows
		n -= rows
	}
}
