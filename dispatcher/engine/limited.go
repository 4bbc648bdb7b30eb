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
	case byBreaker, byProbe, byRequest:
		return dispatcher.LimitedByDestination
	case byRate:
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
	held         held
	queuedBefore bool  // rows were queued when the last claim's came
	filled       bool  // the last claim had as many rows as it might
	cutBy        limit // what made its share of the claim under way smaller
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

// found notes what a claim of a share says of a topic's limit; rows is what it brought. When rows were queued
// as it came, calls are what the topic waits for, and callLimit is the limit of these. keysWait says that due rows were passed
// by for earlier ones of their keys, and overRate that a tenant with due rows has used its rate.
func (t *topic) found(share dispatcher.Share, rows int, keysWait, overRate bool, callLimit dispatcher.LimitedBy, now time.Time) {
	full := rows >= share.Limit
	by := dispatcher.LimitedByIdle
	switch {
	case full && t.limits.cutBy != unlimited:
		by = t.reason(t.limits.cutBy, now)
	case t.limits.queuedBefore, rows == 0 && len(t.queue.rows) > 0:
		by = callLimit
	case overRate:
		by = dispatcher.LimitedByRate
	case t.inLine(), keysWait && !full: // all that is due was looked at
		by = dispatcher.LimitedByOrder
	case t.limits.filled:
		by = dispatcher.LimitedByDatabase // more were due when this claim was sent, and calls were free
	}
	t.limits.filled = full
	t.limits.held.note(by, now)
}

// waitsFor is what a topic is limited by while its rows wait for calls.
func (t *topic) waitsFor(l callLoad) dispatcher.LimitedBy {
	switch a := t.allotCalls(l); {
	case a.by == byTokens:
		return dispatcher.LimitedByRate
	case l.now.Before(t.calls.pausedUntil), t.calls.pacer != nil && t.calls.pacer.AtDestination():
		return dispatcher.LimitedByDestination
	}
	return dispatcher.LimitedByConcurrency
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
	slices.SortFunc(all, func(a, b dispatcher.TopicLimit) int {
		return cmp.Or(cmp.Compare(slices.Index(reasons[:], a.LimitedBy), slices.Index(reasons[:], b.LimitedBy)), strings.Compare(a.Topic, b.Topic))
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
