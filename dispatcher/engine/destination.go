package engine

import (
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

const (
	// forgetEvery is the time after which a topic is forgotten of which nothing was tried to deliver.
	forgetEvery = 10 * time.Minute
	// trialPause is how soon a trial is thought of again that was due while rows of the topic were
	// still in flight.
	trialPause = 250 * time.Millisecond
)

// destination is what is known of the sink's other end. As a whole it is away when a probe fails, until
// one succeeds or an event is delivered. Apart from that each topic has a breaker of its own, so that
// an outage of one holds up no other (CONTRACT C-32). It has neither clock nor lock: see breaker.
//
// A topic that finds nobody is tried again once there was a sign of life since: a delivery of another
// topic, or else a probe.
type destination struct {
	log    *slog.Logger
	link   dispatcher.LinkState    // of the destination as a whole
	state  dispatcher.BreakerState // likewise: not Closed while it is away, or all topics are held
	away   bool
	next   time.Time // when the next probe is due, while it is away
	probes ramp
	asked  bool // a probe is under way
	signs  int  // of life: deliveries and probes that succeeded

	topics      map[string]*topicHealth // those that something was delivered of lately, or was to be
	held        map[string]*topicHealth // those of them whose breaker is open
	forgottenAt time.Time               // when topics were forgotten last
}

// topicHealth is a topic's part of the destination.
type topicHealth struct {
	breaker
	signs   int       // of life, when the wait for the next trial began
	triedAt time.Time // when the last trial was claimed, or the topic was held
	err     error     // the newest failure
	used    bool      // since topics were forgotten last
}

func newDestination(log *slog.Logger) destination {
	return destination{
		log: log, state: dispatcher.BreakerClosed, probes: ramp{250 * time.Millisecond, 2 * time.Second, 0},
		topics: map[string]*topicHealth{}, held: map[string]*topicHealth{},
	}
}

// probed: the destination answered a probe, or failed to. A failure holds everything, unless events of some
// topic are delivered: then it puts off the trials of held topics alone (CONTRACT C-33). Topics that found
// nobody are tried as soon as the destination answers.
func (d *destination) probed(err error, now time.Time) (stop bool) {
	d.asked = false
	switch {
	case err == nil:
		d.signs++
		d.back(now)
	case d.delivers():
		for _, t := range d.held {
			if t.state == dispatcher.BreakerUnreachable && !now.Before(t.next) {
				t.err = err
				t.tried(now)
			}
		}
	default:
		if stop = !d.away; stop {
			d.log.Warn("the destination cannot be reached; claiming waits for it, and no attempts are spent", "error", err)
		}
		d.away = true
		d.next = now.Add(d.probes.next(rand.Float64))
	}
	d.review(err)
	return stop
}

// flows tells when an event of a topic was delivered last; zero for never, and while the topic is held.
func (d *destination) flows(topic string) (at time.Time) {
	if t := d.topics[topic]; t != nil && t.state == dispatcher.BreakerClosed && !d.away {
		return t.deliveredAt
	}
	return time.Time{}
}

// delivers reports whether a topic of which events were delivered is not held.
func (d *destination) delivers() bool {
	for _, t := range d.topics {
		if t.state == dispatcher.BreakerClosed && !t.deliveredAt.IsZero() {
			return !d.away
		}
	}
	return false
}

// back: the destination as a whole is not away, or not any more.
func (d *destination) back(now time.Time) {
	if !d.away {
		return
	}
	d.log.Info("the destination is back")
	d.away = false
	d.probes.reset()
	for _, t := range d.held {
		if t.state == dispatcher.BreakerUnreachable {
			t.next = now
		}
	}
}

// delivered: the destination confirmed an event.
func (d *destination) delivered(name string, now time.Time) {
	d.signs++
	t := d.topic(name)
	if d.state == dispatcher.BreakerClosed && t.state == dispatcher.BreakerClosed {
		t.delivered(now)
		return
	}
	d.back(now)
	d.change(name, t, now, func() { t.delivered(now) })
	d.review(nil)
}

// failed: a call of which no event was delivered has ended, and it may be the destination's fault. events are
// those that it answered for; none means that it found nobody.
func (d *destination) failed(topic string, events []uuid.UUID, err error, began, now time.Time) (hold bool) {
	t := d.topic(topic)
	t.err = err
	hold = d.change(topic, t, now, func() {
		if len(events) == 0 {
			t.unavailable(began, now)
		} else {
			t.refused(events, now)
		}
	})
	if hold || d.state != dispatcher.BreakerClosed {
		d.review(err)
	}
	return hold
}

// tried: a trial has claimed n rows.
func (d *destination) tried(name string, n int, now time.Time) {
	t, held := d.held[name]
	if !held {
		return // something was delivered meanwhile
	}
	t.signs, t.triedAt = d.signs, now
	t.tried(now)
	if n == 0 {
		d.change(name, t, now, func() { t.foundNone(now) })
		d.review(nil)
	}
}

// topic returns a topic, which may be new.
func (d *destination) topic(name string) *topicHealth {
	t, known := d.topics[name]
	if !known {
		t = &topicHealth{breaker: newBreaker()}
		d.topics[name] = t
	}
	t.used = true
	return t
}

// change lets a topic's breaker take note of something, and follows it. It reports whether the topic
// has to be held from now on.
func (d *destination) change(name string, t *topicHealth, now time.Time, note func()) (hold bool) {
	before := t.state
	note()
	if t.state == before {
		return false
	}
	switch t.state {
	case dispatcher.BreakerClosed:
		delete(d.held, name)
		d.log.Info("the topic is no longer held", "topic", name)
		return false
	case dispatcher.BreakerUnreachable:
		d.log.Warn("the topic is held: its destination cannot be reached; trial deliveries end that, and no attempts are spent", "topic", name, "error", t.err)
	case dispatcher.BreakerRefusing:
		d.log.Warn("the topic is held: its destination refuses every event; a few at a time are tried", "topic", name, "error", t.err)
	}
	d.held[name] = t
	t.signs, t.triedAt = d.signs, now
	return before == dispatcher.BreakerClosed
}

// review says anew what is known of the destination as a whole: it takes events while one topic that
// was delivered of is not held. err is the newest failure, or nil when that is not at hand.
func (d *destination) review(err error) {
	d.state = dispatcher.BreakerClosed
	for _, t := range d.held {
		if err == nil {
			err = t.err
		}
		if d.state != dispatcher.BreakerRefusing {
			d.state = t.state
		}
	}
	if d.delivers() {
		d.state = dispatcher.BreakerClosed
	}
	if d.away {
		d.state = dispatcher.BreakerUnreachable
	}
	switch {
	case d.state == dispatcher.BreakerClosed:
		setLink(&d.link, nil)
	case err != nil:
		setLink(&d.link, err)
	}
}

// permit says how the claim loop may go on.
type permit struct {
	probe bool           // ask the destination beside it, and tell probed
	wait  time.Duration  // come back after this time; 0 to claim
	held  map[string]int // else claim at most so many rows of these topics
	next  time.Time      // when one of them is tried next; zero for none
}

// ask is called before each claim. inFlight tells whether rows of a topic are here that were claimed after a
// time.
func (d *destination) ask(now time.Time, inFlight func(topic string, since time.Time) bool) permit {
	if d.away || !d.link.Known {
		wait := d.next.Sub(now)
		if d.asked || wait <= 0 {
			wait = checkEvery // the probe ends it
		}
		return permit{probe: d.next.Sub(now) <= 0 && d.mayAsk(), wait: wait}
	}
	d.forget(now)
	if len(d.held) == 0 {
		return permit{}
	}
	p := permit{held: make(map[string]int, len(d.held))}
	for name, t := range d.held {
		rows := t.trial(now)
		if rows > 0 && inFlight(name, t.triedAt) {
			rows, t.next = 0, now.Add(trialPause)
		}
		if rows > 0 && t.state == dispatcher.BreakerUnreachable && t.signs == d.signs {
			p.probe = d.mayAsk() || p.probe
			p.held[name] = 0 // until the probe has ended
			continue
		}
		if rows == 0 && (p.next.IsZero() || t.next.Before(p.next)) {
			p.next = t.next
		}
		p.held[name] = rows
	}
	return p
}

// mayAsk reports whether a probe may begin, and notes that it does.
func (d *destination) mayAsk() bool {
	may := !d.asked
	d.asked = true
	return may
}

// forget forgets topics of which nothing was tried to deliver for a while, so that their number is
// bounded. What was known of a held one is out of date by then.
func (d *destination) forget(now time.Time) {
	if now.Sub(d.forgottenAt) < forgetEvery {
		return
	}
	d.forgottenAt = now
	for name, t := range d.topics {
		if t.used {
			t.used = false
			continue
		}
		delete(d.topics, name)
		delete(d.held, name)
	}
	d.review(nil)
}

// pausedTopics lists the topics that are held while others go on, by name.
func (d *destination) pausedTopics() (held []dispatcher.PausedTopic) {
	if d.state != dispatcher.BreakerClosed {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(d.held)) {
		t := d.held[name]
		held = append(held, dispatcher.PausedTopic{Topic: name, Breaker: t.state, Err: t.err, Since: t.since})
	}
	return held
}
