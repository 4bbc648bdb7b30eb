package engine

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// How much a topic may have: rows of a claim, and calls of the sink.
//
// A topic whose destination does not respond must not delay the others (CONTRACT C-32), and whether it will
// respond is known too late. So while there are other topics, each leaves them a part of what all share: of the
// calls, and of the rows and bytes in flight. A topic that is alone may take everything but an eighth of the bytes.

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

// allotment is how much of a topic the next claim may take.
type allotment struct {
	rows int
	by   limit
	next time.Time // when it may be more; zero when time alone changes nothing
}

// load is what all topics share, as far as it is free.
type load struct {
	now       time.Time
	alone     bool
	rows      int             // that may still come into flight
	bytes     int64           // likewise
	rate      allotment       // by the dispatcher's rate limit
	spare     int64           // bytes that a topic which is alone leaves
	lowShare  int             // queued rows of a slow topic
	successes int             // of the destination
	unwritten map[string]bool // topics whose outcomes the database refuses, or takes too long over
}

// allot says how much of a topic may be claimed now.
func (t *topic) allot(l load) allotment {
	a := allotment{rows: math.MaxInt}
	least := func(rows int, by limit, next time.Time) {
		if rows < a.rows {
			a = allotment{rows, by, next}
		}
	}
	if t.state != dispatcher.BreakerClosed {
		switch rows := t.halfOpenLimit(l.now); {
		case rows == 0:
			least(0, byBreaker, t.next)
		case t.state == dispatcher.BreakerUnreachable && t.successes == l.successes:
			least(0, byProbe, time.Time{})
		default:
			least(rows, byBreaker, time.Time{})
		}
	}
	if l.now.Before(t.waitUntil) {
		least(0, byRequest, t.waitUntil)
	}
	if t.gate != nil && !t.gate.open {
		if l.now.Before(t.gate.next) {
			least(0, byGate, t.gate.next)
		} else {
			least(1, byGate, time.Time{})
		}
	}
	if t.doubt != nil && l.now.Before(t.doubt.next) {
		least(0, byClaims, t.doubt.next)
	}
	if l.unwritten[t.name] {
		least(0, byOutcomes, time.Time{})
	}
	for _, a := range []allotment{l.rate, t.rate.supply(t.count-t.begun, len(t.queued), l.now)} {
		if a.by == byRate {
			least(a.rows, byRate, a.next)
		}
	}
	if l.alone {
		if l.bytes < l.spare { // another topic may come while calls of this one are stuck
			least(0, byBytes, time.Time{})
		}
		return a
	}
	if t.slow && len(t.queued) >= l.lowShare {
		least(0, bySlowness, time.Time{})
	}
	if t.count > l.rows {
		least(0, byRows, time.Time{})
	}
	if t.bytes > l.bytes {
		least(0, byBytes, time.Time{})
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
		n = min(n, l.rate.rows)
	}
	if n == 0 || len(ts.turn) == 0 {
		return nil
	}
	if ts.left == 0 {
		ts.left, ts.full = len(ts.turn), nil
	}
	forQuiet := n
	var busy []part
	if n > 1 && slices.ContainsFunc(ts.turn, (*topic).busy) {
		forQuiet = max(n/8, min(n/2, quietRows))
		busy = ts.takeBusy(n-forQuiet, l)
	}
	quiet := ts.takeTurns(forQuiet, n > 1, l)
	switch {
	case len(busy) == 0:
		forQuiet = n
	case len(quiet) == 0:
		forQuiet = 0
	}
	divide(busy, n-forQuiet)
	divide(quiet, forQuiet)
	parts := append(busy, quiet...)
	doubtful := slices.IndexFunc(parts, func(p part) bool { return p.topic.doubt != nil })
	if ts.passed = doubtful >= 0 && len(parts) > 1; ts.passed {
		parts = parts[doubtful : doubtful+1]
	}
	var shares []dispatcher.Share
	for _, p := range parts {
		p.topic.halfOpen = p.topic.state != dispatcher.BreakerClosed
		if p.topic.fed = false; p.most > p.rows {
			p.topic.cutBy = unlimited
		}
		shares = append(shares, dispatcher.Share{Topic: p.topic.name, Limit: min(p.rows, p.most)})
	}
	return shares
}

// part is a topic's part of a claim: rows, and the most that it may have.
type part struct {
	topic      *topic
	rows, most int
}

func (t *topic) busy() bool { return t.expected > 0 }

// takeBusy takes up to n of the busy topics. The first is another one each time, since it gets the odd
// rows and, when bytes are short, the bytes.
func (ts *topics) takeBusy(n int, l load) (parts []part) {
	passed := 0
	for ; passed < len(ts.turn) && len(parts) < n; passed++ {
		if t := ts.turn[(ts.first+passed)%len(ts.turn)]; t.busy() {
			parts = ts.take(parts, t, l)
		}
	}
	ts.first = (ts.first + max(1, passed%len(ts.turn))) % len(ts.turn)
	return parts
}

// takeTurns takes up to n of the topics that this round has not looked at, without the busy ones unless
// they have no parts of their own.
func (ts *topics) takeTurns(n int, exceptBusy bool, l load) (parts []part) {
	passed := 0
	for ; passed < ts.left && len(parts) < n; passed++ {
		if t := ts.turn[(ts.next+passed)%len(ts.turn)]; !exceptBusy || !t.busy() {
			parts = ts.take(parts, t, l)
		}
	}
	ts.left -= passed
	ts.next = (ts.next + max(1, passed%len(ts.turn))) % len(ts.turn)
	return parts
}

// take adds a topic that may have rows.
func (ts *topics) take(parts []part, t *topic, l load) []part {
	a := t.allot(l)
	if a.hasItsShare() {
		ts.full = append(ts.full, t)
	}
	if t.cutBy = a.by; a.rows == 0 {
		t.held.note(t.reason(a.by, l.now), l.now)
		return parts
	}
	return append(parts, part{t, 0, a.rows})
}

// divide gives n rows to the parts: none gets less than an equal part while another gets more than its topic is
// expected to have.
func divide(parts []part, n int) {
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(a.topic.expected, b.topic.expected) })
	for i := range parts {
		left := len(parts) - i
		rows := (n + left - 1) / left
		if expected := parts[i].topic.expected; expected > 0 && left > 1 {
			rows = min(rows, expected)
		}
		parts[i].rows = rows
		n -= rows
	}
}

// reserved is how many of the calls are left to topics without one: an eighth, and none of a single call.
func reserved(concurrency int) int {
	if concurrency == 1 {
		return 0
	}
	return (concurrency + 7) / 8
}

// nextCall chooses the topic of the next call: the one with the fewest running, and of these the one that
// was served the longest ago. Thus slow topics share the calls with the fast ones instead of slowing them
// down. The last calls are for topics that have none.
func (f *flight) nextCall(now time.Time) (best *topic) {
	if f.most > 0 && f.running >= f.concurrency { // with dispatcher.Auto more deliveries wait than may run
		return nil
	}
	few := f.fewCalls()
	last := few && !f.alone()
	for _, t := range f.waiting {
		switch {
		case !now.Before(t.queued[0].safeUntil):
			notify(f.inDoubt)
		case t.hasItsCalls(), t.permits(now) == 0, now.Before(t.waitUntil):
		case t.queued[0].weight() > mostSuspects-f.weight:
		case t.running == 0:
			return t
		case few && t.yields(now):
		case f.gathers(t, now):
		case !last && (best == nil || t.running < best.running):
			best = t
		}
	}
	return best
}

// fewCalls reports whether no calls are left but the reserved ones.
func (f *flight) fewCalls() bool { return f.concurrency-f.running <= reserved(f.concurrency) }

// callsRunOut reports whether a topic has all calls that it may have, or those that it shares are all running.
func (f *flight) callsRunOut(t *topic) bool {
	return t.hasItsCalls() || t.running > 0 && f.fewCalls() && !f.alone() || f.running >= f.concurrency
}

// gatherFor bounds how long events gather behind a call.
const gatherFor = 50 * time.Millisecond

// gathers reports whether the rows of a topic wait for more: the sink takes batches, one is under way, and
// they would not fill another. Then a stream of events costs the destination one call at a time, and the
// database one write-back, instead of one for each event.
func (f *flight) gathers(t *topic, now time.Time) bool {
	left := gatherFor - now.Sub(t.began)
	if min(len(t.queued), t.permits(now)) >= min(f.sinkBatch, t.queued[0].batchLimit()) || left <= 0 {
		return false
	}
	if !t.waking {
		t.waking = true
		time.AfterFunc(left, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			t.waking = false
			f.work.Signal()
		})
	}
	return true
}

// callRows is how many of a topic's queued rows the next call has, n at most: none behind a row whose lease is in doubt
// (CONTRACT C-31), no more than each of them may share a call with, and suspects of no more weight than there is room for.
func (t *topic) callRows(n, room int, now time.Time) int {
	rows := 1
	room -= t.queued[0].weight()
	n = min(n, len(t.queued), t.queued[0].batchLimit())
	for rows < n && now.Before(t.queued[rows].safeUntil) && rows < t.queued[rows].batchLimit() && t.queued[rows].weight() <= room {
		n = min(n, t.queued[rows].batchLimit())
		room -= t.queued[rows].weight()
		rows++
	}
	return rows
}

// batchLimit is how many rows a call with this one may have.
func (r *row) batchLimit() int { return cmp.Or(r.maxBatch, math.MaxInt) }
