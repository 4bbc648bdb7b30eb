package engine

import (
	"math/rand/v2"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Admit makes the dispatcher deliver events of those types alone for which admits returns true (CONTRACT C-82). It
// may be called at any time, and again when the types change; nil admits all, as without a call. admits must not
// change its mind, is called for each claimed event, and must not block.
//
// A topic is paused as a whole: what is due before its first event of another type is delivered, and that event and
// those behind it wait. They go back to pending with their attempt, never become dead for it, and keep their order.
// While the topic is paused one row of it is claimed from time to time, after a second or two at first and each 30
// seconds at last, to see whether it is still not admitted. A call of Admit does this at once. Other topics are
// delivered. The pause spares a search through all that waits. Admitted events behind may be delivered meanwhile, with
// OrderingKey never before an earlier one of their key. A RunOnce that ends while a topic is paused returns an error.
//
// When Admit returns, no further delivery of an event begins that is not admitted: rows that were claimed and not
// begun go back to pending, and are claimed again.
func (d *Dispatcher) Admit(admits func(eventType string) bool) {
	d.takeBack(func(f *flight) []*row { return f.controls().admit(admits) })
}

// admit makes add refuse rows of types that are not admitted. It takes back all rows whose delivery has not begun,
// which must be released: they are judged when they are claimed again. All gated topics are checked at once.
func (c *controls) admit(admits func(string) bool) []*row {
	f := (*flight)(c)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.entry.admits = admits
	for _, t := range f.topics.dest.gated {
		t.gate.next, t.gate.open, t.gate.empty = time.Now(), false, false
		t.gate.wait.reset()
	}
	if admits == nil {
		return nil
	}
	return f.takeBack(nil)
}

// stops reports whether an event waits: its type is not admitted, or that of one before it in its topic, which is
// noted.
func (e *entry) stops(event *dispatcher.Event, noted *map[string]string) bool {
	if e.admits == nil {
		return false
	}
	if _, stopped := (*noted)[event.Topic]; stopped {
		return true
	}
	if e.admits(event.EventType) {
		return false
	}
	if *noted == nil {
		*noted = map[string]string{}
	}
	(*noted)[event.Topic] = event.EventType
	return true
}

// gate is what is known of a topic whose next event is not admitted.
//
//	none ──an event that is not admitted──▶ closed ──a check finds one that is──▶ open ──a claim finds no other──▶ none
//	closed ──two checks find no row──▶ none
//	open ──an event that is not admitted──▶ closed
type gate struct {
	eventType string
	since     time.Time
	open      bool      // the last check found an event that is admitted
	empty     bool      // it found none at all
	next      time.Time // when the next check is due
	wait      ramp
}

// checked notes what a claim of a topic found: so many rows, and whether an event stopped it, of that type, which is
// not admitted.
func (ts *topics) checked(t *topic, rows int, eventType string, stopped bool, now time.Time) {
	switch g := t.gate; {
	case stopped:
		if g == nil {
			t.gate = &gate{since: now, wait: ramp{2 * time.Second, 30 * time.Second, 0}}
			ts.dest.gated[t.name] = t
			ts.dest.log.Warn("the topic is paused: its next event has a type that is not admitted; no attempts are spent", "topic", t.name, "eventType", eventType)
		}
		t.gate.eventType, t.gate.open, t.gate.empty = eventType, false, false
		t.gate.next = now.Add(t.gate.wait.next(rand.Float64))
	case g == nil:
	case g.open, g.empty && rows == 0:
		t.gate = nil
		delete(ts.dest.gated, t.name)
		ts.dest.log.Info("the topic is resumed: the type of its next event is admitted, or it has no event", "topic", t.name)
	default: // without a row: another worker may have it for a moment
		g.empty, g.open, g.next = rows == 0, rows > 0, now.Add(g.wait.min)
	}
}

// gatedTopics lists the topics that are paused by their gate, by name.
func (ts *topics) gatedTopics() (all []dispatcher.GatedTopic) {
	for _, t := range byName(ts.dest.gated) {
		if !t.gate.open {
			all = append(all, dispatcher.GatedTopic{Topic: t.name, EventType: t.gate.eventType, Since: t.gate.since})
		}
	}
	return all
}
