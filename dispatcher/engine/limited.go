package engine

import (
	"cmp"
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

// most is the reason that held for longest; empty before the first observation.
func (h *held) most() (by dispatcher.LimitedBy) {
	most := 0.0
	for i, seconds := range h.seconds {
		if seconds > most {
			by, most = reasons[i], seconds
		}
	}
	return by
}

// found notes what a claim of a share says of a topic's limit; rows is what it brought. fed says that rows were queued
// when it came: then calls are what the topic waits for, which callLimit is the limit of. overRate says that a tenant
// with due rows has used its rate.
func (t *topic) found(share dispatcher.Share, rows int, keysWait, overRate bool, callLimit dispatcher.LimitedBy, now time.Time) {
	full := rows >= share.Limit
	by := dispatcher.LimitedByIdle
	switch {
	case full && t.cutBy != unlimited:
		by = t.reason(t.cutBy, now)
	case t.fed, rows == 0 && len(t.queued) > 0:
		by = callLimit
	case overRate:
		by = dispatcher.LimitedByRate
	case t.inLine():
		by = dispatcher.LimitedByOrder
	case t.filled:
		by = dispatcher.LimitedByDatabase // more were due when this claim was sent, and calls were free
	case keysWait && t.count > 0:
		by = dispatcher.LimitedByOrder
	}
	t.filled = full
	t.held.note(by, now)
}

// callLimit is what a topic is limited by while its rows wait for calls.
func (f *flight) callLimit(t *topic, now time.Time) dispatcher.LimitedBy {
	if (f.alone() || !f.callsRunOut(t)) && t.permits(now) == 0 {
		return dispatcher.LimitedByRate
	}
	if now.Before(t.waitUntil) || t.pacer != nil && t.pacer.AtDestination() {
		return dispatcher.LimitedByDestination
	}
	return dispatcher.LimitedByConcurrency
}

// heldByRate notes that nothing is claimed because enough rows wait for the dispatcher's rate limit.
func (f *flight) heldByRate(now time.Time) {
	idles := f.rates.all.idles(now)
	for _, t := range f.waiting {
		by := dispatcher.LimitedByRate
		if idles || !f.alone() && f.callsRunOut(t) {
			by = f.callLimit(t, now)
		}
		t.held.note(by, now)
	}
}

// inLine reports whether more rows wait for others of their keys than are in delivery.
func (t *topic) inLine() bool { return t.count-len(t.queued)-t.begun > t.begun }

// noRoom notes that nothing is claimed because enough rows are queued, or too many wait to be written back.
func (f *flight) noRoom(now time.Time) {
	if unwritten := f.rows - len(f.inFlight); f.rows > f.maxRows && unwritten > len(f.inFlight) {
		for _, t := range f.turn {
			t.held.note(dispatcher.LimitedByDatabase, now)
		}
		return
	}
	for _, t := range f.waiting {
		t.held.note(f.callLimit(t, now), now)
	}
	for _, t := range f.turn {
		if len(t.queued) == 0 && t.inLine() {
			t.held.note(dispatcher.LimitedByOrder, now)
		}
	}
}

// limitedBy is what limits a topic now.
func (ts *topics) limitedBy(t *topic) dispatcher.LimitedBy {
	switch {
	case ts.topicPaused(t):
		return dispatcher.LimitedByDestination
	case t.gate != nil && !t.gate.open:
		return dispatcher.LimitedByConsumer
	case t.doubt != nil:
		return dispatcher.LimitedByDatabase
	}
	return t.held.most()
}

// limits sets what limits the dispatcher and its topics.
func (f *flight) limits(s *dispatcher.Snapshot) {
	if s.Paused || s.Draining {
		return
	}
	if s.Source.Known && !s.Source.OK || s.Schema.State != "" && s.Schema.State != dispatcher.SchemaReady {
		s.LimitedBy = dispatcher.LimitedByDatabase
		return
	}
	if f.rates.limited() && f.rates.part == 0 { // the heartbeat has found no part of the rate limits
		s.LimitedBy = dispatcher.LimitedByDatabase
		return
	}
	if f.unreachable || s.NoRoom || s.StuckCalls >= f.concurrency {
		s.LimitedBy = dispatcher.LimitedByDestination
		return
	}
	all := make([]dispatcher.TopicLimit, 0, len(f.byName))
	for _, t := range f.byName {
		if by := f.limitedBy(t); by != "" {
			all = append(all, dispatcher.TopicLimit{Topic: t.name, LimitedBy: by, Concurrency: f.callsOf(t)})
		}
	}
	slices.SortFunc(all, func(a, b dispatcher.TopicLimit) int {
		return cmp.Or(cmp.Compare(slices.Index(reasons[:], a.LimitedBy), slices.Index(reasons[:], b.LimitedBy)), strings.Compare(a.Topic, b.Topic))
	})
	switch {
	case len(all) > 0:
		s.LimitedBy = all[0].LimitedBy
	case !f.listedAt.IsZero() && len(f.turn) == 0: // no topic has rows
		s.LimitedBy = dispatcher.LimitedByIdle
	}
	all = slices.DeleteFunc(all, func(l dispatcher.TopicLimit) bool { return l.LimitedBy == dispatcher.LimitedByIdle })
	s.TopicLimits = slices.Clip(all[:min(len(all), dispatcher.TopicLimitsListed)])
}

// snapshot sets what is in flight, and what is known of the destination.
func (f *flight) snapshot(s *dispatcher.Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.InFlightRows, s.InFlightBytes = f.rows, f.bytes
	s.Sink, s.Breaker, s.PausedTopics, s.Gated = f.link, f.state, f.pausedTopics(), f.gatedTopics()
	s.LastError, s.LastErrorAt = f.lastError, f.lastErrorAt
	s.Concurrency, s.Decisions = f.concurrency, f.decisionCounts()
	if f.rates.lapse(time.Now()); f.rates.limited() {
		part := f.rates.part
		s.RatePart = &part
	}
	f.stuckCalls(s)
	f.limits(s)
}
