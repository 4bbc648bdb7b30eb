package engine

import (
	"context"
	"errors"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/pacer"
)

// Concurrency that finds itself (CONTRACT C-38): with dispatcher.Auto each topic has a pacer. What they may have in all is
// divided over the live processes.

// mostRequestedWait bounds how long a topic waits when its destination requests it. A topic may have several
// destinations, and one call in a minute floods none of them.
const mostRequestedWait = time.Minute

// SetPeers says how many processes of this dispatcher run, this one included: each has an equal part of
// Config.MaxConcurrency, one call at least. It may be called at any time. Defaults to 1.
func (d *Dispatcher) SetPeers(live int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.live = max(1, live)
	d.flight.setPeers(d.live)
}

// deliverLoops is how many deliveries may ever run at once.
func deliverLoops(cfg dispatcher.Config) int {
	if cfg.Concurrency == dispatcher.Auto {
		return cfg.MaxConcurrency
	}
	return cfg.Concurrency
}

func (f *flight) setPeers(live int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.most == 0 {
		return
	}
	now := time.Now()
	f.live, f.concurrency = live, pacer.Part(f.most, live)
	for _, t := range f.byName {
		if t.pacer != nil {
			f.decided(t.pacer.Bound(f.concurrency, live, now))
		}
	}
	f.resize()
	f.work.Broadcast()
}

// resize fits what may be in flight to the calls that may run.
func (f *flight) resize() {
	calls := 0
	for _, t := range f.byName {
		if t.pacer != nil {
			calls += t.pacer.Limit()
		}
	}
	f.setCalls(min(f.concurrency, max(pacer.FirstLimit, calls)))
}

func (f *flight) setCalls(calls int) {
	f.callRows = calls * f.sinkBatch
	f.maxRows = f.callRows + 3*f.batch
}

// callsOf is how many calls a topic may have at once.
func (f *flight) callsOf(t *topic) int {
	switch {
	case t.pacer != nil:
		return t.pacer.Limit()
	case f.most > 0:
		return min(pacer.FirstLimit, f.concurrency)
	}
	return f.concurrency
}

// hasItsCalls reports whether a topic has as many calls as it may. Stuck calls do not count: they would hold a low limit for ever.
func (t *topic) hasItsCalls() bool { return t.pacer != nil && t.running-t.stuck >= t.pacer.Limit() }

// beganCall reports to the pacer of a topic, which may be new, that a call begins.
func (f *flight) beganCall(t *topic, now time.Time) {
	if f.most == 0 {
		return
	}
	if t.pacer == nil {
		t.pacer = pacer.New(f.concurrency, f.live)
		f.resize()
	}
	t.pacer.SetSharers(f.live * f.inUse)
	t.pacer.Began(now)
}

// paced notes what a call that ended says of its destination. events are those that the destination took, or refused for
// their own fault; refusal is its fault, or nil.
func (f *flight) paced(c call, events int, refusal error, now time.Time) {
	t := c.topic
	if wait := dispatcher.RetryAfterDelay(refusal); wait > 0 && t.deliveredAt.Before(c.began) {
		f.waitFor(t, min(wait, mostRequestedWait), now)
	}
	if t.pacer != nil && (c.cut == nil || isOverdue(c)) {
		f.decided(t.pacer.Ended(c.began, c.took, events, refusal != nil, now))
	}
}

func isOverdue(c call) bool { return errors.Is(c.cut, errOverdue) }

// blames reports whether an error says that the destination has too much to do, or cannot be reached.
func blames(err error) bool {
	return dispatcher.IsDestinationFault(err) || dispatcher.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded) ||
		dispatcher.CauseOf(err).Code == dispatcher.CodeTimeout
}

// isOfTheEvent reports whether an event failed by what was made of it before it was sent, or by its route. Such a failure took
// no time of the destination, so it says nothing of what that bears.
func isOfTheEvent(err error) bool {
	switch dispatcher.CauseOf(err).Class {
	case dispatcher.ClassSchema, dispatcher.ClassRule, dispatcher.ClassMask, dispatcher.ClassMessage, dispatcher.ClassRoute, dispatcher.ClassDecode:
		return true
	}
	return false
}

// waitFor begins no call of a topic for a while, as its destination requested (CONTRACT C-39).
func (f *flight) waitFor(t *topic, wait time.Duration, now time.Time) {
	until := now.Add(wait)
	if !until.After(t.waitUntil) {
		return
	}
	t.waitUntil = until
	time.AfterFunc(wait, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.work.Broadcast()
		f.changed()
	})
}

// recoveredFromOutage begins again with half of what the destination bore.
func (f *flight) recoveredFromOutage(t *topic, now time.Time) {
	if t.pacer != nil {
		f.decided(t.pacer.Resume(now))
	}
}

// decisionCounts is how often the limits were changed, by reason.
func (f *flight) decisionCounts() map[string]int {
	if f.most == 0 {
		return nil
	}
	counts := map[string]int{}
	for _, d := range pacer.Decisions {
		counts[string(d)] = f.decisions[d]
	}
	return counts
}

// decided follows a decision of a topic's pacer.
func (f *flight) decided(d pacer.Decision) {
	if d == pacer.Unchanged {
		return
	}
	f.decisions[d]++
	f.resize()
	f.work.Broadcast()
}
