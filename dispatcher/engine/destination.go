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
	// halfOpenRetry is the wait before a half-open probe that was due while rows of the topic were still in
	// flight.
	halfOpenRetry = 250 * time.Millisecond
)

// destination is what is known of the sink's other end. As a whole it is unreachable from when a probe of
// [dispatcher.Sink] fails until one succeeds or an event is delivered. In addition each topic has a breaker of
// its own, so that an outage of one delays no other (CONTRACT C-32). It has neither clock nor lock: see breaker.
//
// An Unreachable topic gets a half-open probe once the destination has succeeded since: with a delivery of
// another topic, or with a probe.
type destination struct {
	log         *slog.Logger
	link        dispatcher.LinkState    // of the destination as a whole
	state       dispatcher.BreakerState // likewise: not Closed while it is unreachable, or all topics are paused
	unreachable bool
	next        time.Time // when the next probe is due, while it is unreachable
	probes      ramp
	probing     bool // a probe is under way
	successes   int  // deliveries and probes that succeeded

	topics      map[string]*topicHealth // those that something was delivered of lately, or was to be
	paused      map[string]*topicHealth // those of them whose breaker is open
	forgottenAt time.Time               // when topics were forgotten last
}

// topicHealth is a topic's part of the destination.
type topicHealth struct {
	breaker
	successes  int       // of the destination, when the wait for the next half-open probe began
	halfOpenAt time.Time // when the last half-open probe was claimed, or the topic was paused
	err        error     // the newest failure
	used       bool      // since topics were forgotten last
}

func newDestination(log *slog.Logger) destination {
	return destination{
		log: log, state: dispatcher.BreakerClosed, probes: ramp{250 * time.Millisecond, 2 * time.Second, 0},
		topics: map[string]*topicHealth{}, paused: map[string]*topicHealth{},
	}
}

// probed notes the result of a probe. A failure pauses everything, unless events of some topic are delivered:
// then it delays only the half-open probes of paused topics (CONTRACT C-33). After a success the Unreachable
// topics are probed at once.
func (d *destination) probed(err error, now time.Time) (stop bool) {
	d.probing = false
	switch {
	case err == nil:
		d.successes++
		d.recovered(now)
	case d.delivering():
		for _, t := range d.paused {
			if t.state == dispatcher.BreakerUnreachable && !now.Before(t.next) {
				t.err = err
				t.halfOpenBegan(now)
			}
		}
	default:
		if stop = !d.unreachable; stop {
			d.log.Warn("the destination cannot be reached; claiming waits for it, and no attempts are spent", "error", err)
		}
		d.unreachable = true
		d.next = now.Add(d.probes.next(rand.Float64))
	}
	d.review(err)
	return stop
}

// lastDelivered is when an event of a topic was delivered last; zero for never, and while the topic is paused.
func (d *destination) lastDelivered(topic string) (at time.Time) {
	if t := d.topics[topic]; t != nil && t.state == dispatcher.BreakerClosed && !d.unreachable {
		return t.deliveredAt
	}
	return time.Time{}
}

// delivering reports whether some topic has delivered events and is not paused.
func (d *destination) delivering() bool {
	for _, t := range d.topics {
		if t.state == dispatcher.BreakerClosed && !t.deliveredAt.IsZero() {
			return !d.unreachable
		}
	}
	return false
}

// recovered notes that the destination as a whole is reachable.
func (d *destination) recovered(now time.Time) {
	if !d.unreachable {
		return
	}
	d.log.Info("the destination is reachable again")
	d.unreachable = false
	d.probes.reset()
	for _, t := range d.paused {
		if t.state == dispatcher.BreakerUnreachable {
			t.next = now
		}
	}
}

// delivered notes that the destination confirmed an event.
func (d *destination) delivered(name string, now time.Time) {
	d.successes++
	t := d.topic(name)
	if d.state == dispatcher.BreakerClosed && t.state == dispatcher.BreakerClosed {
		t.delivered(now)
		return
	}
	d.recovered(now)
	d.change(name, t, now, func() { t.delivered(now) })
	d.review(nil)
}

// failed notes a call of which no event was delivered, perhaps by the destination's fault. events are those that
// it refused; none means that it was unreachable.
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

// halfOpenBegan notes that a half-open probe has claimed n rows.
func (d *destination) halfOpenBegan(name string, n int, now time.Time) {
	t, paused := d.paused[name]
	if !paused {
		return // something was delivered meanwhile
	}
	t.successes, t.halfOpenAt = d.successes, now
	t.halfOpenBegan(now)
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

// change runs note on a topic's breaker, and follows the breaker's state. It reports whether the topic has to be
// paused from now on.
func (d *destination) change(name string, t *topicHealth, now time.Time, note func()) (hold bool) {
	before := t.state
	note()
	if t.state == before {
		return false
	}
	switch t.state {
	case dispatcher.BreakerClosed:
		delete(d.paused, name)
		d.log.Info("the topic is resumed", "topic", name)
		return false
	case dispatcher.BreakerUnreachable:
		d.log.Warn("the topic is paused: its destination cannot be reached; it is probed with a few events, and no attempts are spent", "topic", name, "error", t.err)
	case dispatcher.BreakerRefusing:
		d.log.Warn("the topic is paused: its destination refuses every event; it is probed with a few events", "topic", name, "error", t.err)
	}
	d.paused[name] = t
	t.successes, t.halfOpenAt = d.successes, now
	return before == dispatcher.BreakerClosed
}

// review updates what is known of the destination as a whole: it takes events while it is delivering. err is the
// newest failure, or nil when that is not at hand.
func (d *destination) review(err error) {
	d.state = dispatcher.BreakerClosed
	for _, t := range d.paused {
		if err == nil {
			err = t.err
		}
		if d.state != dispatcher.BreakerRefusing {
			d.state = t.state
		}
	}
	if d.delivering() {
		d.state = dispatcher.BreakerClosed
	}
	if d.unreachable {
		d.state = dispatcher.BreakerUnreachable
	}
	switch {
	case d.state == dispatcher.BreakerClosed:
		setLink(&d.link, nil)
	case err != nil:
		setLink(&d.link, err)
	}
}

// permit is what the claim loop may do now.
type permit struct {
	probe  bool           // probe the destination in the background, and call probed
	wait   time.Duration  // come back after this time; 0 to claim
	limits map[string]int // else the most rows to claim of these topics
	next   time.Time      // when the next half-open probe of one is due; zero for none
}

// permit is called before each claim. inFlight reports whether rows of a topic that were claimed after a time are
// in flight.
func (d *destination) permit(now time.Time, inFlight func(topic string, since time.Time) bool) permit {
	if d.unreachable || !d.link.Known {
		wait := d.next.Sub(now)
		if d.probing || wait <= 0 {
			wait = checkEvery // the probe ends it
		}
		return permit{probe: d.next.Sub(now) <= 0 && d.beginProbe(), wait: wait}
	}
	d.forget(now)
	if len(d.paused) == 0 {
		return permit{}
	}
	p := permit{limits: make(map[string]int, len(d.paused))}
	for name, t := range d.paused {
		rows := t.halfOpenLimit(now)
		if rows > 0 && inFlight(name, t.halfOpenAt) {
			rows, t.next = 0, now.Add(halfOpenRetry)
		}
		if rows > 0 && t.state == dispatcher.BreakerUnreachable && t.successes == d.successes {
			p.probe = d.beginProbe() || p.probe
			p.limits[name] = 0 // until the probe has ended
			continue
		}
		if rows == 0 && (p.next.IsZero() || t.next.Before(p.next)) {
			p.next = t.next
		}
		p.limits[name] = rows
	}
	return p
}

// beginProbe reports whether no probe is under way, and notes that one begins.
func (d *destination) beginProbe() bool {
	may := !d.probing
	d.probing = true
	return may
}

// forget removes topics without a delivery for a while, so that their number is bounded. What was known of a
// paused one is out of date by then.
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
		delete(d.paused, name)
	}
	d.review(nil)
}

// pausedTopics lists the topics that are paused while others are delivered, by name.
func (d *destination) pausedTopics() (all []dispatcher.PausedTopic) {
	if d.state != dispatcher.BreakerClosed {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(d.paused)) {
		t := d.paused[name]
		all = append(all, dispatcher.PausedTopic{Topic: name, Breaker: t.state, Err: t.err, Since: t.since})
	}
	return all
}
