package engine

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// forgetGated is how long a gated topic is known of which nothing is claimed any more. While it has rows one is
// claimed each 30 seconds at least.
const forgetGated = 2 * time.Minute

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
	d.mu.Lock()
	d.admits = admits
	r := d.run
	var rows []*row
	if r != nil {
		rows = r.flight.admit(admits)
	}
	d.mu.Unlock()
	d.health.typesChanged()
	if r != nil {
		r.completer.release(rows)
		d.changed()
	}
}

// admit makes add refuse rows of types that are not admitted. It takes back all rows whose delivery has not begun,
// which must be released: they are judged when they are claimed again.
func (f *flight) admit(admits func(string) bool) []*row {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.admits = admits
	if admits == nil {
		return nil
	}
	return f.emptyQueues()
}

// stops reports whether an event waits: its type is not admitted, or that of one before it in its topic, which is
// noted.
func (f *flight) stops(e *dispatcher.Event, noted *map[string]string) bool {
	if _, behind := (*noted)[e.Topic]; behind {
		return true
	}
	if f.admits(e.EventType) {
		return false
	}
	if *noted == nil {
		*noted = map[string]string{}
	}
	(*noted)[e.Topic] = e.EventType
	return true
}

// gate is what is known of topics whose next event is not admitted. Like a breaker it has neither clock nor lock.
//
//	not known ──an event that is not admitted──▶ paused ──a check finds one that is──▶ open ──a claim finds no other──▶ not known
//	paused ──two checks find no row──▶ not known
//	open ──an event that is not admitted──▶ paused
type gate struct {
	log    *slog.Logger
	topics map[string]*gated
}

// gated is a topic of a gate.
type gated struct {
	eventType string
	since     time.Time
	open      bool // the last check found an event that is admitted
	empty     bool // it found none at all
	checkedAt time.Time
	next      time.Time // when the next check is due
	wait      ramp
}

func newGate(log *slog.Logger) gate { return gate{log: log, topics: map[string]*gated{}} }

// restrict limits the paused topics in what a claim may take: to one row when a check is due, else to none.
func (g *gate) restrict(p *permit, now time.Time) {
	for name, t := range g.topics {
		switch {
		case now.Sub(t.checkedAt) > forgetGated:
			g.forget(name)
			continue
		case t.open:
			continue
		}
		rows := 1
		if now.Before(t.next) {
			rows = 0
			if p.next.IsZero() || t.next.Before(p.next) {
				p.next = t.next
			}
		}
		if most, limited := p.limits[name]; limited {
			rows = min(rows, most)
		}
		if p.limits == nil {
			p.limits = map[string]int{}
		}
		p.limits[name] = rows
	}
}

// claimed notes how many rows of each topic a claim brought, and the types of events that were not admitted, of
// those topics that have any.
func (g *gate) claimed(shares []dispatcher.Share, byTopic map[string]int, refused map[string]string, now time.Time) {
	if len(g.topics) == 0 && len(refused) == 0 {
		return
	}
	for _, s := range shares {
		t := g.topics[s.Topic]
		eventType, stops := refused[s.Topic]
		switch {
		case stops:
			g.pause(s.Topic, eventType, now)
			continue
		case t == nil:
			continue
		case t.open, t.empty && byTopic[s.Topic] == 0:
			g.forget(s.Topic)
			continue
		case byTopic[s.Topic] == 0: // another worker may have the row for a moment
			t.empty = true
		default:
			t.open = true
		}
		t.checkedAt, t.next = now, now.Add(t.wait.min)
	}
}

// pause notes that the next event of a topic is not admitted.
func (g *gate) pause(topic, eventType string, now time.Time) {
	t := g.topics[topic]
	if t == nil {
		t = &gated{since: now, wait: ramp{2 * time.Second, 30 * time.Second, 0}}
		g.topics[topic] = t
		g.log.Warn("the topic is paused: its next event has a type that is not admitted; no attempts are spent", "topic", topic, "eventType", eventType)
	}
	t.eventType, t.open, t.empty = eventType, false, false
	t.checkedAt, t.next = now, now.Add(t.wait.next(rand.Float64))
}

func (g *gate) forget(topic string) {
	delete(g.topics, topic)
	g.log.Info("the topic is resumed: the type of its next event is admitted, or it has no event", "topic", topic)
}

// changed notes that other types are admitted: all topics are checked at once.
func (g *gate) changed(now time.Time) {
	for _, t := range g.topics {
		t.next, t.open, t.empty = now, false, false
		t.wait.reset()
	}
}

// list is the paused topics, by name.
func (g *gate) list() (all []dispatcher.GatedTopic) {
	for _, name := range slices.Sorted(maps.Keys(g.topics)) {
		if t := g.topics[name]; !t.open {
			all = append(all, dispatcher.GatedTopic{Topic: name, EventType: t.eventType, Since: t.since})
		}
	}
	return all
}

// err is not nil while a topic is paused.
func (g *gate) err() error {
	all := g.list()
	if len(all) == 0 {
		return nil
	}
	return fmt.Errorf("topic %q is paused: the type of its next event, %q, is not admitted; register a verified consumer of it", all[0].Topic, all[0].EventType)
}

// typesChanged: see gate.changed.
func (h *health) typesChanged() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gate.changed(time.Now())
}

// typesClaimed: see gate.claimed.
func (h *health) typesClaimed(shares []dispatcher.Share, byTopic map[string]int, refused map[string]string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gate.claimed(shares, byTopic, refused, time.Now())
}

// gateErr: see gate.err.
func (h *health) gateErr() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gate.err()
}
