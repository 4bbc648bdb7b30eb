package engine

import (
	"cmp"
	"slices"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// keys puts the rows of each key in line: only the first may be delivered, and the next one when that
// has succeeded (CONTRACT C-50). The store gives a worker no row of a key without all the live ones
// before it, and in order. They stay in order here, because a row that does not succeed takes those
// behind it out of the line: they are released, and come again behind it. A nil keys keeps no order.
type keys map[key]*line

// key names what is in order: the rows of a topic with one partition key, else aggregate.
type key struct{ topic, name string }

// line is the rows of a key in this process. The first is queued or in delivery, the others wait.
type line struct {
	key  key
	rows []*row
}

func newKeys(o dispatcher.Ordering) keys {
	if o == dispatcher.OrderingKey {
		return keys{}
	}
	return nil
}

// join puts a row at the end of its key's line, and reports whether it may be delivered.
func (k keys) join(r *row) (first bool) {
	id := key{r.event.Topic, cmp.Or(r.event.PartitionKey, r.event.AggregateID)}
	if k == nil || id.name == "" {
		return true
	}
	if k[id] == nil {
		k[id] = &line{key: id}
	}
	r.line = k[id]
	r.line.rows = append(r.line.rows, r)
	return r.first()
}

// first reports whether the row is one that may be delivered.
func (r *row) first() bool { return r.line == nil || len(r.line.rows) > 0 && r.line.rows[0] == r }

// isAfter reports whether an event comes after an unreadable one of its key.
func (k keys) isAfter(e *dispatcher.Event, unreadable []dispatcher.Unreadable) bool {
	return k != nil && slices.ContainsFunc(unreadable, func(u dispatcher.Unreadable) bool {
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
		delete(k, r.line.key)
		return nil
	}
	return r.line.rows[0]
}

// stop takes the rows behind a row out of its line, and returns them.
func (k keys) stop(r *row) (behind []*row) {
	if r.line == nil {
		return nil
	}
	at := slices.Index(r.line.rows, r)
	if at < 0 {
		return nil
	}
	behind = slices.Clone(r.line.rows[at+1:])
	r.line.rows = r.line.rows[:at+1]
	return behind
}

// leave takes a row out of its line with those behind it, and returns these.
func (k keys) leave(r *row) (behind []*row) {
	behind = k.stop(r)
	if r.line == nil || !slices.Contains(r.line.rows, r) {
		return behind
	}
	if r.line.rows = r.line.rows[:len(r.line.rows)-1]; len(r.line.rows) == 0 {
		delete(k, r.line.key)
	}
	return behind
}

// disband takes the rows out of the lines of a topic, all but those in delivery. It returns those that
// waited, not those that were queued. An empty topic means all.
func (k keys) disband(topic string) (waited []*row) {
	for id, l := range k {
		if topic != "" && topic != id.topic {
			continue
		}
		waited = append(waited, l.rows[1:]...)
		if l.rows = l.rows[:1]; l.rows[0].delivery == nil {
			l.rows = nil
			delete(k, id)
		}
	}
	return waited
}
