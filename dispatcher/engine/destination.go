package engine

import (
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// destination is what is known of the sink's other end. As a whole it is unreachable from when a probe of
// [dispatcher.Sink] fails until one succeeds or an event is delivered. In addition each topic has a breaker of
// its own, so that an outage of one delays no other (CONTRACT C-32).
//
// An Unreachable topic gets a half-open probe once the destination has succeeded since: with a delivery of
// another topic, or with a probe.
type destination struct {
	log         *slog.Logger
	link        dispatcher.LinkState    // of the destination as a whole
	state       dispatcher.BreakerState // likewise: not Closed while it is unreachable, or all topics are paused
	unreachable bool
	nextProbe   time.Time // when one is due, while it is unreachable
	probes      ramp
	probing     bool              // a probe is under way
	successes   int               // deliveries and probes that succeeded
	deliveredAt time.Time         // the last event of any topic
	lastError   string            // of a delivery
	lastErrorAt time.Time         //
	paused      map[string]*topic // those whose breaker is open
	gated       map[string]*topic // those whose next event has a type that is not admitted
}

func newDestination(log *slog.Logger) destination {
	return destination{
		log: log, state: dispatcher.BreakerClosed, probes: ramp{250 * time.Millisecond, 2 * time.Second, 0},
		paused: map[string]*topic{}, gated: map[string]*topic{},
	}
}

// probed notes the result of a probe. A failure pauses everything, unless events of some topic are delivered:
// then it delays only the half-open probes of paused topics (CONTRACT C-33). After a success the Unreachable
// topics are probed at once.
func (ts *topics) probed(err error, now time.Time) (stop bool) {
	ts.dest.probing = false
	switch {
	case err == nil:
		ts.dest.successes++
		ts.recovered(now)
	case ts.delivering():
		for _, t := range ts.dest.paused {
			if t.breaker.state == dispatcher.BreakerUnreachable && !now.Before(t.breaker.next) {
				t.err = err
				t.breaker.halfOpenBegan(now)
			}
		}
	default:
		if stop = !ts.dest.unreachable; stop {
			ts.dest.log.Warn("the destination cannot be reached; claiming waits for it, and no attempts are spent", "error", err)
		}
		ts.dest.unreachable = true
		ts.dest.nextProbe = now.Add(ts.dest.probes.next(rand.Float64))
	}
	ts.review(err)
	return stop
}

// delivering reports whether some topic has delivered events and is not paused.
func (ts *topics) delivering() bool {
	for _, t := range ts.byName {
		if t.breaker.state == dispatcher.BreakerClosed && !t.breaker.deliveredAt.IsZero() {
			return !ts.dest.unreachable
		}
	}
	return false
}

// recovered notes that the destination as a whole is reachable.
func (ts *topics) recovered(now time.Time) {
	if !ts.dest.unreachable {
		return
	}
	ts.dest.log.Info("the destination is reachable again")
	ts.dest.unreachable = false
	ts.dest.probes.reset()
	for _, t := range ts.dest.paused {
		if t.breaker.state == dispatcher.BreakerUnreachable {
			t.breaker.next = now
		}
	}
}

// delivered notes that the destination confirmed an event.
func (ts *topics) delivered(t *topic, now time.Time) {
	ts.dest.successes++
	ts.dest.deliveredAt = now
	if ts.dest.state == dispatcher.BreakerClosed && t.breaker.state == dispatcher.BreakerClosed {
		t.breaker.delivered(now)
		return
	}
	ts.recovered(now)
	ts.change(t, now, func() { t.breaker.delivered(now) })
	ts.review(nil)
}

// failed notes a call of which no event was delivered, perhaps by the destination's fault. events are those that
// it refused; none means that it was unreachable. It reports whether the topic is paused from now on.
func (ts *topics) failed(t *topic, events []*dispatcher.Event, err error, began, now time.Time) (pause bool) {
	t.err = err
	pause = ts.change(t, now, func() {
		if len(events) == 0 {
			t.breaker.unavailable(began, now)
		} else {
			t.breaker.refused(events, now)
		}
	})
	if pause || ts.dest.state != dispatcher.BreakerClosed {
		ts.review(err)
	}
	return pause
}

// halfOpenBegan notes that a half-open probe has claimed n rows.
func (ts *topics) halfOpenBegan(t *topic, n int, now time.Time) {
	if t.breaker.state == dispatcher.BreakerClosed {
		return // something was delivered meanwhile
	}
	t.successes = ts.dest.successes
	t.breaker.halfOpenBegan(now)
	t.say(ts.dest.log, now)
	if n == 0 {
		ts.change(t, now, func() { t.breaker.foundNone(now) })
		ts.review(nil)
	}
}

// change runs note on a topic's breaker, and follows the breaker's state. It reports whether the topic is
// paused from now on.
func (ts *topics) change(t *topic, now time.Time, note func()) (pause bool) {
	before := t.breaker.state
	note()
	if t.breaker.state == before {
		return false
	}
	if t.breaker.state == dispatcher.BreakerClosed {
		delete(ts.dest.paused, t.name)
		if t.breaker.said.why == before {
			ts.dest.log.Info("the topic is resumed", "topic", t.name)
		}
		t.breaker.said.why = ""
		return false
	}
	t.say(ts.dest.log, now)
	ts.dest.paused[t.name] = t
	t.successes = ts.dest.successes
	return before == dispatcher.BreakerClosed
}

// pauseSaid is what the log says of a topic's breaker, and when it last said each.
type pauseSaid struct {
	why                   dispatcher.BreakerState // empty for nothing
	unreachable, refusing time.Time
}

// say logs why a topic is paused, once a minute at most for each reason.
func (t *topic) say(log *slog.Logger, now time.Time) {
	at := &t.breaker.said.refusing
	what := "the topic is paused: its destination refused one event after the other; it is probed with a few events"
	if t.breaker.state == dispatcher.BreakerUnreachable {
		at = &t.breaker.said.unreachable
		what = "the topic is paused: its destination cannot be reached; it is probed with a few events, and no attempts are spent"
	}
	if t.breaker.said.why != t.breaker.state && now.Sub(*at) >= time.Minute {
		t.breaker.said.why, *at = t.breaker.state, now
		log.Warn(what, "topic", t.name, "error", t.err)
	}
}

// review updates what is known of the destination as a whole: it takes events while it is delivering. err is the
// newest failure, or nil when that is not at hand.
func (ts *topics) review(err error) {
	ts.dest.state = dispatcher.BreakerClosed
	for _, t := range ts.dest.paused {
		if err == nil {
			err = t.err
		}
		if ts.dest.state != dispatcher.BreakerRefusing {
			ts.dest.state = t.breaker.state
		}
	}
	if ts.delivering() {
		ts.dest.state = dispatcher.BreakerClosed
	}
	if ts.dest.unreachable {
		ts.dest.state = dispatcher.BreakerUnreachable
	}
	switch {
	case ts.dest.state == dispatcher.BreakerClosed:
		setLink(&ts.dest.link, nil)
	case err != nil:
		setLink(&ts.dest.link, err)
	}
}

// permit says how long the next claim has to wait for the destination as a whole, 0 for a claim now, and whether to
// probe it in the background, and then to call probed.
func (ts *topics) permit(l load) (wait time.Duration, probe bool) {
	if ts.dest.unreachable || !ts.dest.link.Known {
		wait = ts.dest.nextProbe.Sub(l.now)
		probe = wait <= 0 && !ts.dest.probing
		if ts.dest.probing || wait <= 0 {
			wait = checkEvery // the probe ends it
		}
	}
	for _, t := range ts.dest.paused {
		probe = probe || wait == 0 && !ts.dest.probing && t.allot(l).by == byProbe
	}
	ts.dest.probing = ts.dest.probing || probe
	return wait, probe
}

// again is when more may be claimed of a topic that is paused, gated, or limited by a rate; zero for none.
func (ts *topics) again(l load) (next time.Time) {
	for _, t := range ts.round.topics {
		next = sooner(next, t.allot(l).next)
	}
	return next
}

// pausedTopics lists the topics that are paused while others are delivered, by name.
func (ts *topics) pausedTopics() (all []dispatcher.PausedTopic) {
	if ts.dest.state != dispatcher.BreakerClosed {
		return nil
	}
	for _, t := range byName(ts.dest.paused) {
		all = append(all, dispatcher.PausedTopic{Topic: t.name, Breaker: t.breaker.state, Err: t.err, Since: t.breaker.since})
	}
	return all
}

// called notes the outcome of a call for those of its rows that are ours. When the topic is paused from now on, paused
// are its rows whose delivery has not begun: they must be released.
func (f *flight) called(c call, rows []*row, writable []bool, errs []error) (paused []*row, _ flow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := c.began.Add(c.took)
	var (
		delivered, unreachable bool
		refused                []*dispatcher.Event
		failure                error // of the destination, perhaps
		responses              int   // events that were delivered, or refused for their own fault
		blamed                 bool  // for the destination's
	)
	before, failed := f.flowOf(c.topic), newFault(errs, now)
	for i, row := range rows {
		err := errs[i]
		if !writable[i] {
			continue
		}
		if row.before = f.faults.note(row.event.ID, err, failed); err == nil {
			delivered = true
			responses++
			c.topic.breaker.tenants.delivered = row.event.TenantID
			continue
		}
		switch {
		case isOfTheEvent(err):
		case !blames(err) && !isOverdue(c), failed.alone(len(rows)) && !row.before.at.IsZero() && before.delivered(row.before.at):
			responses++
		default:
			blamed = true
		}
		f.topics.dest.lastError, f.topics.dest.lastErrorAt = c.failure(err).Error(), now
		if _, permanent := dispatcher.PermanentReason(err); permanent || c.cut != nil {
			continue // says nothing of the destination
		}
		failure = err
		if dispatcher.IsUnavailable(err) {
			unreachable = true
		} else {
			refused = append(refused, row.event)
		}
	}
	switch {
	case delivered:
		c.topic.calls.requests.first = uuid.Nil
		f.topics.delivered(c.topic, now)
	case len(refused) > 0, unreachable:
		if f.topics.failed(c.topic, refused, failure, c.began, now) {
			paused = f.takeBack(c.topic)
		}
	}
	for i, err := range errs {
		if wait := dispatcher.RetryAfterDelay(err); writable[i] && wait > 0 && blames(err) {
			paused = append(paused, f.requested(c, rows[i], wait, now)...)
		}
	}
	after := f.flowOf(c.topic)
	if f.paced(c, responses, blamed, now); before.paused && !after.paused {
		f.recovered(c.topic, now)
	}
	return paused, after
}

func (f *flight) flowOf(t *topic) flow {
	return flow{t.breaker.deliveredAt, f.topics.dest.deliveredAt, f.topics.topicPaused(t)}
}

// probed notes the result of a probe. When everything is paused from now on, it returns the rows whose delivery has not
// begun: they must be released.
func (f *flight) probed(err error) (paused []*row) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was, now := f.topics.dest.unreachable, time.Now()
	if f.topics.probed(err, now) {
		paused = f.takeBack(nil)
	}
	if was && !f.topics.dest.unreachable {
		for _, t := range f.topics.byName {
			f.recovered(t, now)
		}
	}
	return paused
}

// setLink notes the outcome of a try, nil for success, and reports whether the state has changed.
func setLink(l *dispatcher.LinkState, err error) (changed bool) {
	ok := err == nil
	changed = !l.Known || l.OK != ok
	if changed {
		l.Since = time.Now()
	}
	l.Known, l.OK, l.Err = true, ok, err
	return changed
}
