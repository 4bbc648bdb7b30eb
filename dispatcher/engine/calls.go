package engine

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/pacer"
)

// How many calls of the sink a topic may have: decided here and nowhere else, as rows are in allot.go.
//
// What is scarce is the time of calls, not their number: a topic whose calls take a second uses as much with one of them as
// another with two hundred of 5 ms. So the next call is for the topic that had the least time of calls of late. The last calls are
// for topics that have none and whose calls are short: with any number of slow topics there is one for a fast topic.

// calls are the calls of the sink that run, and how many may. They belong to a flight, whose lock guards them.
type calls struct {
	bound     int // the most at once, of this process
	ofAll     int // with dispatcher.Auto: the same of all live processes; 0 without
	processes int // that are live
	batch     int // the most rows of one call
	running   int
	active    map[*delivery]bool
	suspicion int             // of the rows in delivery, and not yet written back: see mostSuspects
	decisions map[string]int  // how often the limits were changed, by reason; nil without dispatcher.Auto
	base      context.Context // of deliveries: carries values, and never ends
}

// topicCalls are the calls of one topic.
type topicCalls struct {
	running     int
	stuck       int       // of running
	began       time.Time // the last of them
	time        callTime
	pacer       *pacer.Pacer // nil without dispatcher.Auto, and before the first call
	pausedUntil time.Time    // no call begins before: the destination requested it
	requests    requests     // pauses of its events and tenants
}

// callTime is the time of calls that a topic uses.
type callTime struct {
	average float64       // calls at once of late
	at      time.Time     // of average
	typical time.Duration // how long a call takes: the newer ones weigh more; 0 before the first has ended
}

const (
	// averageOver is in how long the past of callTime.average fades to a third.
	averageOver = 10 * time.Second
	// shortCall is the longest typical call of a topic that may have one of the last calls.
	shortCall = longSupply
)

// pass counts the time until now, in which so many calls ran.
func (c *callTime) pass(running int, now time.Time) {
	fade := math.Exp(-now.Sub(c.at).Seconds() / averageOver.Seconds())
	c.average, c.at = c.average*fade+float64(running)*(1-fade), now
}

// ended notes how long a call took.
func (c *callTime) ended(took time.Duration) {
	if c.typical > 0 {
		took = (3*c.typical + took) / 4
	}
	c.typical = took
}

// use is what the topic has of the calls: those of late, and what those that run will add.
func (c *topicCalls) use(now time.Time) float64 {
	c.time.pass(c.running, now)
	return c.time.average + float64(c.running)*min(1, cmp.Or(c.time.typical, shortCall).Seconds()/averageOver.Seconds())
}

// isQuick reports whether the topic's next call is likely to be short. A topic whose calls are not known is tried soon after its rows
// came, unless many are: of many new topics those that turn out to be slow would have all calls.
func (t *topic) isQuick(l callLoad) bool {
	if t.calls.time.typical > 0 {
		return t.calls.time.typical < shortCall
	}
	return t.isNew(l.now) && l.unproven(l.waiting, l.now) <= l.forQuick()+1
}

// isNew reports whether the topic's calls are not known, and its first row has not waited for long.
func (t *topic) isNew(now time.Time) bool {
	return t.calls.time.typical == 0 && len(t.queue.rows) > 0 && now.Sub(t.queue.rows[0].claimedAt) < 4*shortCall
}

// unproven is how many topics whose calls are not known have one that may still turn out to be short, or wait for one and are new.
func (c *calls) unproven(waiting []*topic, now time.Time) int {
	all := map[*topic]bool{}
	for d := range c.active {
		if d.topic.calls.time.typical == 0 && now.Sub(d.began) < shortCall {
			all[d.topic] = true
		}
	}
	for _, t := range waiting {
		if t.isNew(now) {
			all[t] = true
		}
	}
	return len(all)
}

// delivery is a running call of Sink.Deliver. Its memory is used again for the next one.
type delivery struct {
	ctx      context.Context
	cut      context.CancelCauseFunc
	topic    *topic
	rows     []*row
	began    time.Time
	counted  time.Time // when the begin of its suspects was counted; zero for none
	writable []bool    // which rows may be written back; set by finish
	results  []result
	// The flight's lock guards these. overdue: its time is over, and its context is cancelled. abandoned: the engine no
	// longer waits for it, and its rows are written back as failed. stuck: abandoned while the process continues
	// to run. pinned are the bytes that a stuck call keeps.
	overdue, abandoned, stuck bool
	outlived                  bool // it has run for so long that its suspects do not count any more
	pinned                    int64
}

// What keeps a topic from having more calls.
const (
	byCalls     limit = "calls"     // as many run as may
	byPace      limit = "pace"      // it has as many as its pacer has found
	byOthers    limit = "others"    // the last calls are for topics that have none, and whose calls are short
	byTokens    limit = "tokens"    // its rate limit or the dispatcher's is used
	byPause     limit = "pause"     // its destination requested a pause
	bySuspects  limit = "suspects"  // rows that may end the process are delivered few at once
	byLease     limit = "lease"     // the lease of its next row is in doubt (CONTRACT C-31)
	byTenants   limit = "tenants"   // the last calls are for tenants that have none
	byGathering limit = "gathering" // a call is under way, and its rows would not fill another
)

// callAllotment is how many calls more a topic may have now.
type callAllotment struct {
	allotment
	first int // place of the row that the next one begins with
}

// callLoad is what the calls of all topics share, as far as it is free.
type callLoad struct {
	*calls
	now     time.Time
	alone   bool
	free    int
	places  int      // free ones, and at least that of the delivery that looks for a call
	waiting []*topic // with queued rows
}

// allotCalls says how many calls more the topic may have now.
func (t *topic) allotCalls(l callLoad) callAllotment {
	a := callAllotment{allotment: allotment{n: math.MaxInt}}
	tokens := t.permits(l.now)
	if l.alone && tokens == 0 { // its calls wait for tokens too
		a.least(0, byTokens, t.tokenAt(l.now))
	}
	a.least(l.places, byCalls, time.Time{})
	if p := t.calls.pacer; p != nil { // stuck calls do not count: they would hold a low limit for ever
		a.least(p.Limit()-(t.calls.running-t.calls.stuck), byPace, time.Time{})
	}
	switch {
	case l.alone:
	case t.calls.running > 0:
		a.least(l.free-l.reserved(), byOthers, time.Time{})
	case l.free <= l.forQuick() && !t.isQuick(l):
		again := time.Time{}
		if t.calls.time.typical == 0 { // it may be tried when the others are known
			again = l.now.Add(shortCall / 4)
		}
		a.least(0, byOthers, again)
	}
	if tokens == 0 {
		a.least(0, byTokens, t.tokenAt(l.now))
	}
	if l.now.Before(t.calls.pausedUntil) {
		a.least(0, byPause, t.calls.pausedUntil)
	}
	if len(t.queue.rows) == 0 {
		return a
	}
	next := t.queue.rows[0]
	if next.weight() > mostSuspects-l.suspicion {
		a.least(0, bySuspects, time.Time{})
	}
	if !l.now.Before(next.safeUntil) {
		a.least(0, byLease, time.Time{})
	}
	if t.calls.running == 0 {
		return a
	}
	last := l.free <= l.reserved()
	place, ok := t.queue.nextTenant(l.batch*(t.calls.running+l.free), last, l.now)
	if a.first = place; !ok && last {
		a.least(0, byTenants, time.Time{})
	}
	if gathered := t.calls.began.Add(gatherFor); l.now.Before(gathered) && min(t.queue.ready(l.batch), tokens) < min(l.batch, t.queue.rows[a.first].batchLimit()) {
		a.least(0, byGathering, gathered)
	}
	return a
}

// gatherFor bounds how long events gather behind a call. The sink takes batches, one is under way, and they would not fill
// another. Then a stream of events costs the destination one call at a time, and the database one write-back, instead of
// one for each event.
const gatherFor = 50 * time.Millisecond

// rowsOfCall are the first queued rows of a topic, as many as the next call has, n at most: none behind a row whose lease is in doubt
// (CONTRACT C-31), no more than each of them may share a call with, and suspects of no more weight than there is room for.
// Where a call may have several rows of a key, it has as many as there are, so that few keys take several calls at once. It
// uses the memory.
func (t *topic) rowsOfCall(n, room int, now time.Time, memory []*row) []*row {
	rows := memory[:0]
	add := func(r *row) bool {
		if len(rows) > 0 && (len(rows) >= min(n, r.batchLimit()) || !now.Before(r.safeUntil) || r.weight() > room) {
			return false
		}
		n = min(n, r.batchLimit())
		room -= r.weight()
		rows = append(rows, r)
		return true
	}
	for _, first := range t.queue.rows {
		if !add(first) {
			return rows
		}
		for _, r := range t.queue.behind(first) {
			if !add(r) {
				return rows
			}
		}
	}
	return rows
}

// batchLimit is how many rows a call with this one may have.
func (r *row) batchLimit() int { return cmp.Or(r.before.maxBatch, math.MaxInt) }

// reserved is how many of the calls are left to topics without one: an eighth, and none of a single call.
func (c *calls) reserved() int {
	if c.bound == 1 {
		return 0
	}
	return (c.bound + 7) / 8
}

// forQuick is how many of these are left to topics whose calls are short: of fewer than eight calls none.
func (c *calls) forQuick() int { return c.bound / 8 }

// load is what the topics share now.
func (c *calls) load(now time.Time, alone bool, waiting []*topic) callLoad {
	free := c.bound - c.running
	return callLoad{calls: c, now: now, alone: alone, free: free, places: free, waiting: waiting}
}

// of is how many calls a topic may have at once.
func (c *calls) of(t *topic) int {
	switch {
	case t.calls.pacer != nil:
		return t.calls.pacer.Limit()
	case c.ofAll > 0:
		return min(pacer.FirstLimit, c.bound)
	}
	return c.bound
}

// begin notes that a call begins, which has these rows. busyTopics are those with rows in flight.
func (c *calls) begin(d *delivery, busyTopics int) {
	t := d.topic
	d.ctx, d.cut = context.WithCancelCause(c.base)
	for _, r := range d.rows {
		r.delivery, r.suspicion = d, r.weight()
		c.suspicion += r.suspicion
	}
	t.calls.time.pass(t.calls.running, d.began)
	t.calls.began = d.began
	t.calls.running++
	c.running++
	c.active[d] = true
	if t.calls.pacer != nil {
		t.calls.pacer.SetSharers(c.processes * busyTopics)
		t.calls.pacer.Began(d.began)
	}
}

// end notes that a call is over.
func (c *calls) end(d *delivery, now time.Time) {
	t := d.topic
	d.cut(nil)
	t.calls.time.pass(t.calls.running, now)
	t.calls.time.ended(max(1, now.Sub(d.began)))
	t.calls.running--
	c.running--
	if d.stuck {
		t.calls.stuck--
	}
	if t.calls.pacer != nil {
		t.calls.pacer.Left(now)
	}
	delete(c.active, d)
}

// listStuck lists the calls that are stuck, the longest first, and says how many bytes they keep.
func (c *calls) listStuck() (all []dispatcher.StuckCall, pinned int64) {
	for d := range c.active {
		if d.stuck {
			all = append(all, dispatcher.StuckCall{Topic: d.topic.name, EventID: d.rows[0].event.ID, Events: len(d.rows), Since: d.began})
			pinned += d.pinned
		}
	}
	slices.SortFunc(all, func(a, b dispatcher.StuckCall) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Topic, b.Topic))
	})
	return all, pinned
}
