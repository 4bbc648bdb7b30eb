package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// keys puts the rows of each key in line: only the first may be delivered, and the next one when that
// has succeeded (CONTRACT C-50). A call of a sink that keeps the order of its batch may have the next ones too. The store
// gives a worker no row of a key without all the live ones
// before it, and in order. They stay in order here, because a row that does not succeed takes those
// behind it out of the line: they are released, and come again behind it. Without lines it keeps no order.
type keys struct {
	lines    map[key]*line
	together bool // a call may have several rows of a key: see dispatcher.Ordered
}

// key names what is in order: the rows of a topic with one partition key, else aggregate.
type key struct{ topic, name string }

// line is the rows of a key in this process. The first is queued, or the first ones are in delivery, in one call. The others
// wait.
type line struct {
	key    key
	rows   []*row
	joined int       // rows, from the first to the last
	began  time.Time // when the delivery of its first row began
	failed bool      // one of those in delivery has failed
}

func newKeys(o dispatcher.Ordering, together bool) keys {
	if o == dispatcher.OrderingKey {
		return keys{map[key]*line{}, together}
	}
	return keys{}
}

// join puts a row at the end of its key's line, and reports whether it may be delivered.
func (k keys) join(r *row) (first bool) {
	id := key{r.event.Topic, cmp.Or(r.event.PartitionKey, r.event.AggregateID)}
	if k.lines == nil || id.name == "" {
		return true
	}
	if k.lines[id] == nil {
		k.lines[id] = &line{key: id}
	}
	r.line = k.lines[id]
	r.line.rows = append(r.line.rows, r)
	r.line.joined++
	return r.first()
}

// first reports whether the row is one that may be delivered.
func (r *row) first() bool { return r.line == nil || len(r.line.rows) > 0 && r.line.rows[0] == r }

// behindFailed reports whether a row before it in its key's line failed in the same call.
func (r *row) behindFailed() bool { return r.line != nil && r.line.failed }

// endsLine reports whether no other row of its key is here that may be delivered yet.
func (r *row) endsLine() bool { return r.line == nil || len(r.line.rows) == 0 }

// isAfter reports whether an event comes after an unreadable one of its key.
func (k keys) isAfter(e *dispatcher.Event, unreadable []dispatcher.Unreadable) bool {
	return k.lines != nil && slices.ContainsFunc(unreadable, func(u dispatcher.Unreadable) bool {
		name := cmp.Or(e.PartitionKey, e.AggregateID)
		return name != "" && u.Event.Topic == e.Topic && cmp.Or(u.Event.PartitionKey, u.Event.AggregateID) == name && u.Event.Seq < e.Seq
	})
}

// next takes a row that was delivered out of its line, and returns the one that is first now, if any.
func (k keys) next(r *row) *row {
	if r.line == nil || !r.first() {
		return nil
	}
	if r.line.rows = r.line.rows[1:]; len(r.line.rows) == 0 {
		delete(k.lines, r.line.key)
		return nil
	}
	return r.line.rows[0]
}

// stop takes the rows behind a row that are not in delivery out of its line, and returns them.
func (k keys) stop(r *row) (behind []*row) {
	if r.line == nil {
		return nil
	}
	at := slices.Index(r.line.rows, r)
	if at < 0 {
		return nil
	}
	for at++; at < len(r.line.rows) && r.line.rows[at].delivery != nil; at++ {
	}
	behind = slices.Clone(r.line.rows[at:])
	r.line.rows = r.line.rows[:at]
	return behind
}

// leave takes a row out of its line with those behind it that are not in delivery, and returns these.
func (k keys) leave(r *row) (behind []*row) {
	behind = k.stop(r)
	if r.line == nil {
		return behind
	}
	if r.line.rows = slices.DeleteFunc(r.line.rows, func(other *row) bool { return other == r }); len(r.line.rows) == 0 && k.lines[r.line.key] == r.line {
		delete(k.lines, r.line.key)
	}
	return behind
}

// disband takes the rows out of the lines of a topic, all but those in delivery. It returns those that
// waited, not those that were queued. An empty topic means all.
func (k keys) disband(topic string) (waited []*row) {
	for id, l := range k.lines {
		switch {
		case topic != "" && topic != id.topic:
		case l.rows[0].delivery == nil:
			waited = append(waited, l.rows[1:]...)
			l.rows = nil
			delete(k.lines, id)
		default:
			waited = append(waited, k.stop(l.rows[0])...)
		}
	}
	return waited
}
