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

// SetPeers says how many processes of this dispatcher run, this one included: each has an equal part of
// Config.MaxConcurrency, one call at least. It may be called at any time. Defaults to 1.
func (d *Dispatcher) SetPeers(live int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.processes = max(1, live)
	d.flight.controls().setPeers(d.processes)
}

// deliverLoops is how many deliveries may ever run at once.
func deliverLoops(cfg dispatcher.Config) int {
	if cfg.Concurrency == dispatcher.Auto {
		return cfg.MaxConcurrency
	}
	return cfg.Concurrency
}

func (c *controls) setPeers(live int) {
	f := (*flight)(c)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls.ofAll == 0 {
		return
	}
	now := time.Now()
	f.calls.processes, f.calls.bound = live, pacer.Part(f.calls.ofAll, live)
	for _, t := range f.topics.byName {
		if t.calls.pacer != nil {
			f.decided(t.calls.pacer.Bound(f.calls.bound, live, now))
		}
	}
	f.resize()
	f.signals.work.Broadcast()
}

// resize fits what may be in flight to what the pacers have found.
func (f *flight) resize() {
	calls := 0
	for _, t := range f.topics.byName {
		if t.calls.pacer != nil {
			calls += t.calls.pacer.Limit()
		}
	}
	f.fit(min(f.calls.bound, max(pacer.FirstLimit, calls)))
}

// paced notes what a call that ended says of its destination. events are those that the destination took, or refused for
// their own fault; refused says that it reported a fault of its own.
func (f *flight) paced(c call, events int, refused bool, now time.Time) {
	t := c.topic
	if t.calls.pacer != nil && (c.cut == nil || isOverdue(c)) {
		f.decided(t.calls.pacer.Ended(c.began, c.took, events, refused, now))
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
	if until := now.Add(wait); until.After(t.calls.pausedUntil) {
		t.calls.pausedUntil = until
		f.signals.changed() // the claim loop learns when
	}
}

// decided follows a decision of a topic's pacer.
func (f *flight) decided(d pacer.Decision) {
	if d == pacer.Unchanged {
		return
	}
	f.calls.decisions[string(d)]++
	f.resize()
	f.signals.work.Broadcast()
}

// recovered begins again with half of what the destination bore, after an outage.
func (f *flight) recovered(t *topic, now time.Time) {
	if t.calls.pacer != nil {
		f.decided(t.calls.pacer.Resume(now))
	}
}
