package engine

import (
	"context"
	"errors"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// suspectFor is how long a suspect is remembered after its last failure, and sayEvery how often the log names it.
const suspectFor, sayEvery = 5 * time.Minute, time.Minute

var errSuspects = errors.New("the database refuses them, or takes too long over them")

// isOdd reports whether a failure is of the rows in the statement: fewer of them may succeed.
func isOdd(err error) bool { return dispatcher.IsRefused(err) || dispatcher.IsTooSlow(err) }

// kind is the outcomes of one topic by one verb. What refuses some of them, or takes long over them, is mostly a
// trigger that looks at the topic.
type kind struct {
	verb  verb
	topic string
}

// suspect is a kind that was in a statement which failed for its rows. Its outcomes are written while all others continue,
// in statements that shrink to one outcome and grow again, and nothing of the topic is claimed until they are written.
// An outcome that is refused alone is left to its lease's end; one that takes too long is tried until its lease is over
// (CONTRACT C-33, C-35).
type suspect struct {
	waiting []result
	size    size
	slow    error     // of the last statement, if it took too long
	warned  bool      // its statements take too long while the database responds: the next such one gives late outcomes up
	until   time.Time // it is remembered; zero while none of its own statements has failed
	saidAt  time.Time // when the log named it
}

// size fits statements to what the database takes (CONTRACT C-35).
type size struct {
	rows  int           // the most of the next statement
	limit time.Duration // how long the last one took that took too long
}

// learn halves the size after a statement that was refused or took too long, and doubles it after a full one that took
// less than a quarter of that time.
func (s *size) learn(rows int, took time.Duration, err error) {
	switch {
	case isOdd(err):
		s.rows = max(1, rows/2)
		if dispatcher.IsTooSlow(err) {
			s.limit = took
		}
	case err == nil && rows == s.rows && took < s.limit/4:
		s.rows = min(2*rows, chunkRows)
	}
}

// sift hands the outcomes of suspects over to them, and returns the others. failed are the outcomes of a statement that
// failed for its rows: their kinds become suspects.
func (c *completer) sift(v verb, results, failed []result) (others []result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range failed {
		k := kind{v, r.row.event.Topic}
		if c.suspects[k] == nil {
			c.suspects[k] = &suspect{size: size{max(1, len(failed)/2), storeTimeout}}
		}
	}
	if len(c.suspects) == 0 {
		return results
	}
	for _, r := range results {
		if s := c.suspects[kind{v, r.row.event.Topic}]; s != nil {
			s.waiting = append(s.waiting, r)
		} else {
			others = append(others, r)
		}
	}
	notify(c.bells.suspected)
	return others
}

// unwrittenTopics have suspects whose outcomes are not yet written: no more of them is claimed.
func (c *completer) unwrittenTopics() (names map[string]bool) {
	for k := range c.turn() {
		if names == nil {
			names = map[string]bool{}
		}
		names[k.topic] = true
	}
	return names
}

// turn returns the suspects whose outcomes wait, and forgets those that are none any more.
func (c *completer) turn() map[kind]*suspect {
	c.mu.Lock()
	defer c.mu.Unlock()
	turn := map[kind]*suspect{}
	for k, s := range c.suspects {
		if len(s.waiting) > 0 {
			turn[k] = s
		} else if time.Now().After(s.until) {
			delete(c.suspects, k)
		}
	}
	return turn
}

// flushSuspects writes the outcomes of suspects, one statement of each in turn, until none waits. It fails when the
// database does, and when every statement of a turn had one outcome and took too long.
func (c *completer) flushSuspects(ctx context.Context) (err error) {
	for turn := c.turn(); len(turn) > 0; turn = c.turn() {
		written := false
		for k, s := range turn {
			switch err = c.try(ctx, k, s); {
			case err == nil:
				written = true
			case !isOdd(err):
				c.d.health.sourceFailed(err)
				return err
			}
		}
		if !written {
			return err
		}
	}
	return nil
}

// try writes the first outcomes of a suspect. It fails when the database does, and when one outcome took too long alone.
func (c *completer) try(ctx context.Context, k kind, s *suspect) error {
	if s.slow != nil {
		c.leaveOver(ctx, k, s)
	}
	c.mu.Lock()
	part := s.waiting[:min(len(s.waiting), s.size.rows)]
	c.mu.Unlock()
	if len(part) == 0 {
		c.d.changed()
		return nil
	}
	err := c.send(ctx, k.verb, part, &s.size)
	alone := len(part) == 1
	switch s.slow = nil; {
	case err != nil && !isOdd(err):
		return err
	case dispatcher.IsTooSlow(err):
		s.slow = err
		c.say(k, s, part[0], err)
	case err != nil && alone:
		c.leave(k, s, part, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		s.until = time.Now().Add(suspectFor)
	}
	s.warned = s.warned && err != nil
	if err == nil || alone {
		s.waiting = s.waiting[len(part):]
	}
	if alone && s.slow != nil {
		s.waiting = append(s.waiting, part...)
		return err
	}
	if len(s.waiting) == 0 {
		c.d.changed() // its topic may be claimed again
	}
	return nil
}

// leaveOver leaves the outcomes of a suspect whose leases are over, if the database responds to others: its last
// statement took too long. A database that has just responded again takes one statement more.
func (c *completer) leaveOver(ctx context.Context, k kind, s *suspect) {
	c.mu.Lock()
	waiting := s.waiting
	c.mu.Unlock()
	var over, others []result
	for _, r := range waiting {
		if time.Now().After(r.row.safeUntil) {
			over = append(over, r)
		} else {
			others = append(others, r)
		}
	}
	if len(over) == 0 {
		return
	}
	if _, err := storeCall(ctx, c.d.store.Schema); err != nil || !s.warned {
		s.warned = err == nil
		return
	}
	c.leave(k, s, over, s.slow)
	c.mu.Lock()
	s.waiting = append(others, s.waiting[len(waiting):]...)
	c.mu.Unlock()
}

// leave leaves rows to their leases' end.
func (c *completer) leave(k kind, s *suspect, results []result, err error) {
	c.mu.Lock()
	c.done.Refused += len(results)
	c.mu.Unlock()
	c.d.cfg.Observer.Refused(len(results))
	c.d.health.refused(&c.d.health.outcomes, err)
	c.written(each(results, func(r result) *row { return r.row }))
	c.say(k, s, results[0], err)
}

// say names a suspect in the log, now and then.
func (c *completer) say(k kind, s *suspect, r result, err error) {
	if time.Since(s.saidAt) >= sayEvery {
		s.saidAt = time.Now()
		c.d.cfg.Logger.Error("the database refuses an outcome, or takes too long over it; an event without an outcome is delivered again when its lease ends",
			"event", r.row.event.ID, "topic", k.topic, "outcome", k.verb, "error", err)
	}
}
