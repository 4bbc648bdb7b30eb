package engine

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// reasons are what may limit a topic; the first that limits one limits the dispatcher (CONTRACT C-97).
var reasons = [...]dispatcher.LimitedBy{
	dispatcher.LimitedByConcurrency, dispatcher.LimitedByDatabase, dispatcher.LimitedByRate, dispatcher.LimitedByDestination,
	dispatcher.LimitedByOrder, dispatcher.LimitedByConsumer, dispatcher.LimitedByIdle,
}

// reason says what a limit of a topic means to an operator.
func (l limit) reason() dispatcher.LimitedBy {
	switch l {
	case byBreaker, byProbe, byRequest, byPause:
		return dispatcher.LimitedByDestination
	case byRate, byTokens:
		return dispatcher.LimitedByRate
	case byGate:
		return dispatcher.LimitedByConsumer
	case byClaims, byOutcomes:
		return dispatcher.LimitedByDatabase
	default: // its share of the rows or bytes is in flight, and waits for calls
		return dispatcher.LimitedByConcurrency
	}
}

// reason is what a limit of the topic means now: while its rates idle, rows that wait for them wait for calls.
func (t *topic) reason(by limit, now time.Time) dispatcher.LimitedBy {
	if by == byRate && t.idles(now) {
		return dispatcher.LimitedByConcurrency
	}
	return by.reason()
}

// topicLimits is what limits a topic.
type topicLimits struct {
	held  held
	cutBy limit                // what made its share of the claim under way smaller
	left  dispatcher.LimitedBy // what the due rows wait for that its last claim left in the outbox; Idle for none
}

// held is for how long each of the reasons limited a topic. The past fades.
type held struct {
	seconds [len(reasons)]float64
	at      time.Time
}

const (
	// heldFor is in how long the past fades to a third.
	heldFor = 3 * time.Second
	// heldOnce bounds what one observation counts for: the process may have slept.
	heldOnce = time.Second
	// observeEvery is the least time between two observations.
	observeEvery = 10 * time.Millisecond
)

// note counts the time since the last observation for a reason.
func (h *held) note(by dispatcher.LimitedBy, now time.Time) {
	d := max(time.Microsecond, min(heldOnce, now.Sub(h.at)))
	h.at = now
	fade := math.Exp(-d.Seconds() / heldFor.Seconds())
	for i := range h.seconds {
		h.seconds[i] *= fade
		if reasons[i] == by {
			h.seconds[i] += d.Seconds()
		}
	}
}

// longest is the reason that held for longest; empty before the first observation.
func (h *held) longest() (by dispatcher.LimitedBy) {
	most := 0.0
	for i, seconds := range h.seconds {
		if seconds > most {
			by, most = reasons[i], seconds
		}
	}
	return by
}

// found notes what the due rows wait for that a claim of a share left, which brought so many rows. keysWait says that some were
// passed by for earlier ones of their keys, and overRate that a tenant with due rows has used its rate.
func (t *topic) found(share dispatcher.Share, rows int, keysWait, overRate bool, now time.Time) {
	switch full := rows >= share.Limit; {
	case full && t.limits.cutBy != unlimited:
		t.limits.left = t.reason(t.limits.cutBy, now)
	case full:
		t.limits.left = dispatcher.LimitedByDatabase // for the next claim
	case overRate:
		t.limits.left = dispatcher.LimitedByRate
	case keysWait: // all that is due was looked at
		t.limits.left = dispatcher.LimitedByOrder
	default:
		t.limits.left = dispatcher.LimitedByIdle
	}
}

// waitsFor is what the topic's oldest due row waits for: a call while it is queued, else its claim, else an earlier row of its key. It
// may be read at any time, and knows nothing of what the claim loop did.
func (t *topic) waitsFor(l load, c callLoad) dispatcher.LimitedBy {
	if len(t.queue.rows) > 0 {
		switch a := t.allotCalls(c); {
		case a.n > 0, a.by == byGathering:
		case a.by == byPace && t.calls.pacer.AtDestination():
			return dispatcher.LimitedByDestination
		default:
			return a.by.reason()
		}
	}
	switch a := t.allot(l); {
	case a.n == 0 && (a.by != byRate || t.rows.all > 0): // a rate that others use says nothing of rows that were not claimed
		return t.reason(a.by, l.now)
	case t.inLine():
		return dispatcher.LimitedByOrder
	}
	return t.limits.left
}

// starved is for how long a topic with queued rows has had no call, in whole seconds.
func (t *topic) starved(now time.Time) time.Duration {
	if len(t.queue.rows) == 0 || t.calls.running > 0 {
		return 0
	}
	since := t.queue.rows[0].claimedAt
	if t.calls.began.After(since) {
		since = t.calls.began
	}
	return now.Sub(since).Truncate(time.Second)
}

// observe notes what each topic waits for. It is called before the rows of a claim are queued, and where no claim is made.
func (in *intake) observe(now time.Time) {
	if now.Sub(in.topics.round.observedAt) < observeEvery {
		return
	}
	in.topics.round.observedAt = now
	l, c := in.load(now), in.calls.load(now, in.topics.alone(), in.queue.waiting)
	unwritten := in.account.rows - len(in.account.inFlight)
	for _, t := range in.topics.byName {
		by := dispatcher.LimitedByDatabase
		if in.account.rows <= in.account.maxRows || unwritten <= len(in.account.inFlight) {
			by = t.waitsFor(l, c)
		}
		t.limits.held.note(by, now)
	}
}

// inLine reports whether more rows wait for others of their keys than are in delivery.
func (t *topic) inLine() bool {
	return t.rows.all-t.queue.ready(t.rows.all)-t.rows.inDelivery > t.rows.inDelivery
}

// limitedBy is what limits a topic now.
func (ts *topics) limitedBy(t *topic) dispatcher.LimitedBy {
	switch {
	case ts.topicPaused(t):
		return dispatcher.LimitedByDestination
	case t.gate != nil && !t.gate.open:
		return dispatcher.LimitedByConsumer
	case t.doubt != nil && t.doubt.stops:
		return dispatcher.LimitedByDatabase
	}
	return t.limits.held.longest()
}

// limits sets what limits the dispatcher and its topics.
func (c *controls) limits(s *dispatcher.Snapshot) {
	if s.Paused || s.Draining {
		return
	}
	if s.Source.Known && !s.Source.OK || s.Schema.State != "" && s.Schema.State != dispatcher.SchemaReady {
		s.LimitedBy = dispatcher.LimitedByDatabase
		return
	}
	if c.topics.rates.limited() && c.topics.rates.part == 0 { // the heartbeat has found no part of the rate limits
		s.LimitedBy = dispatcher.LimitedByDatabase
		return
	}
	if c.topics.dest.unreachable || s.NoRoom || s.StuckCalls >= c.calls.bound {
		s.LimitedBy = dispatcher.LimitedByDestination
		return
	}
	all := make([]dispatcher.TopicLimit, 0, len(c.topics.byName))
	for _, t := range c.topics.byName {
		if by := c.topics.limitedBy(t); by != "" {
			all = append(all, dispatcher.TopicLimit{Topic: t.name, LimitedBy: by, Concurrency: c.calls.of(t)})
		}
	}
	of, now := c.topics.byName, time.Now()
	slices.SortFunc(all, func(a, b dispatcher.TopicLimit) int { // of those that wait for a call, the one first that has had none for longest
		return cmp.Or(cmp.Compare(slices.Index(reasons[:], a.LimitedBy), slices.Index(reasons[:], b.LimitedBy)),
			cmp.Compare(of[b.Topic].starved(now), of[a.Topic].starved(now)), strings.Compare(a.Topic, b.Topic))
	})
	switch {
	case len(all) > 0:
		s.LimitedBy = all[0].LimitedBy
	case !c.topics.round.listedAt.IsZero() && len(c.topics.round.topics) == 0: // no topic has rows
		s.LimitedBy = dispatcher.LimitedByIdle
	}
	all = slices.DeleteFunc(all, func(l dispatcher.TopicLimit) bool { return l.LimitedBy == dispatcher.LimitedByIdle })
	s.TopicLimits = slices.Clip(all[:min(len(all), dispatcher.TopicLimitsListed)])
}

// snapshot sets what is in flight, and what is known of the destination.
func (c *controls) snapshot(s *dispatcher.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.InFlightRows, s.InFlightBytes = c.account.rows, c.account.bytes
	s.Sink, s.Breaker, s.PausedTopics, s.Gated = c.topics.dest.link, c.topics.dest.state, c.topics.pausedTopics(), c.topics.gatedTopics()
	s.LastError, s.LastErrorAt = c.topics.dest.lastError, c.topics.dest.lastErrorAt
	s.ClaimsStopped = c.topics.refused.stop(c.topics.round.topics...)
	s.Concurrency, s.Decisions = c.calls.bound, maps.Clone(c.calls.decisions)
	if c.topics.rates.lapse(time.Now()); c.topics.rates.limited() {
		part := c.topics.rates.part
		s.RatePart = &part
	}
	stuck, pinned := c.calls.listStuck()
	s.StuckCalls, s.Stuck = len(stuck), stuck[:min(len(stuck), dispatcher.StuckListed)]
	s.NoRoom = pinned >= c.account.maxBytes || c.topics.alone() && pinned >= c.account.maxBytes-c.account.spare()
	c.limits(s)
}
