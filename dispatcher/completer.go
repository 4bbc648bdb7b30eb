package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Outcomes are written when the last flush has returned and either so many wait or so much time
// has passed since the first of them.
const (
	flushAt    = 2000
	flushAfter = 3 * time.Millisecond
)

// verb is what is done with a row: the Store method that writes it back.
type verb string

const (
	ack     verb = "ack"
	nack    verb = "nack"
	release verb = "release"
)

// outcome is what to write back of a row.
type outcome struct {
	verb    verb
	failure Failure // of a nack
}

type result struct {
	row *row
	outcome
}

// outcomes are the rows that wait to be written back, by what is done with them.
type outcomes struct {
	acks, releases []*row
	nacks          []result
}

func (o *outcomes) len() int { return len(o.acks) + len(o.releases) + len(o.nacks) }

// completer writes outcomes back, many in one statement. What the database does not take is kept and
// tried again, however late: a lease that is over is either still ours, and then the write-back
// spares a duplicate, or the store refuses it and nothing changes (CONTRACT C-23).
type completer struct {
	store   Store
	health  *health
	obs     Observer
	log     *slog.Logger
	written func([]*row) // tells the flight that rows are done with
	wake    func()       // wakes the claim loop

	some, full chan struct{} // a result waits; flushAt of them do
	again      chan struct{} // the database may be back

	// claims is held while rows are claimed, and while attempts are given back. A release whose answer was
	// lost is tried again; had the same row been claimed meanwhile, under the attempt that was given
	// back, it would take that lease from its delivery.
	claims sync.Mutex

	mu      sync.Mutex
	waiting outcomes
	failing error   // of the last flush
	done    Outcome // so far
}

func newCompleter(d *Dispatcher, written func([]*row)) *completer {
	return &completer{
		store: d.store, health: d.health, obs: d.cfg.Observer, log: d.cfg.Logger, written: written, wake: d.changed,
		some: make(chan struct{}, 1), full: make(chan struct{}, 1), again: make(chan struct{}, 1),
	}
}

// add takes results to be written back soon.
func (c *completer) add(results []result) {
	if len(results) == 0 {
		return
	}
	c.mu.Lock()
	first := c.waiting.len() == 0
	for _, r := range results {
		switch r.verb {
		case ack:
			c.waiting.acks = append(c.waiting.acks, r.row)
		case release:
			c.waiting.releases = append(c.waiting.releases, r.row)
		default:
			c.waiting.nacks = append(c.waiting.nacks, r)
		}
	}
	full := c.waiting.len() >= flushAt
	c.mu.Unlock()
	if first {
		signal(c.some)
	}
	if full {
		signal(c.full)
	}
}

// release gives back rows whose delivery has not begun.
func (c *completer) release(rows []*row) {
	if len(rows) == 0 {
		return
	}
	c.mu.Lock()
	c.waiting.releases = append(c.waiting.releases, rows...)
	c.mu.Unlock()
	signal(c.some)
}

// loop writes back until stop is closed, and then what is left until ctx ends.
func (c *completer) loop(ctx context.Context, stop <-chan struct{}) {
	retry := ramp{100 * time.Millisecond, 5 * time.Second, 0}
	for stopped := false; !stopped; {
		select {
		case <-c.some:
			pause(flushAfter, c.full, stop)
		case <-stop:
			stopped = true
		}
		for c.flush(ctx) != nil && ctx.Err() == nil {
			pause(retry.next(rand.Float64), c.again, ctx.Done())
		}
		retry.reset()
	}
	if err := c.unwritten(); err != nil {
		c.log.Error("stopped before every outcome was written back", "error", err)
	}
}

// retry makes a flush that waits for the database try at once.
func (c *completer) retry() { signal(c.again) }

// flush writes what waits, one statement for each verb. A verb that fails keeps its rows and those of
// the verbs after it.
func (c *completer) flush(ctx context.Context) error {
	c.mu.Lock()
	o := c.waiting
	c.waiting = outcomes{acks: make([]*row, 0, len(o.acks))}
	c.mu.Unlock()
	if len(o.releases) > 0 || slices.ContainsFunc(o.nacks, func(r result) bool { return r.failure.Unspent }) {
		c.claims.Lock()
		defer c.claims.Unlock()
	}

	err := c.write(ctx, ack, o.acks, c.store.Ack)
	if err == nil {
		o.acks = nil
		err = c.write(ctx, release, o.releases, c.store.Release)
	}
	if err == nil {
		o.releases = nil
		err = c.writeNacks(ctx, o.nacks)
	}
	if err == nil {
		o.nacks = nil
	}
	c.mu.Lock()
	back := c.failing != nil && err == nil
	c.failing = err
	if err != nil {
		c.putBack(o)
	}
	c.mu.Unlock()
	if err != nil {
		c.health.sourceFailed(err)
	} else if back {
		c.wake() // the claim loop waits for this
	}
	return err
}

// putBack keeps what was not written, before what has come since.
func (c *completer) putBack(o outcomes) {
	c.waiting.acks = append(o.acks, c.waiting.acks...)
	c.waiting.releases = append(o.releases, c.waiting.releases...)
	c.waiting.nacks = append(o.nacks, c.waiting.nacks...)
}

// write acks or releases rows.
func (c *completer) write(ctx context.Context, v verb, rows []*row, do func(context.Context, []Lease) ([]Lease, error)) error {
	if len(rows) == 0 {
		return nil
	}
	var lost []Lease
	err := storeCall(ctx, func(ctx context.Context) (err error) {
		lost, err = do(ctx, leases(rows))
		return err
	})
	if err != nil {
		return err
	}
	var done Outcome
	if v == release {
		done.Released = len(rows) - len(lost)
	} else {
		done.Delivered = c.acked(rows, setOf(lost))
	}
	c.settle(v, rows, lost, done)
	return nil
}

// acked tells the observer of the rows that are marked delivered, and returns their number.
func (c *completer) acked(rows []*row, lost map[Lease]bool) (n int) {
	now := time.Now()
	for _, r := range rows {
		if len(lost) > 0 && lost[r.event.Lease()] {
			continue
		}
		n++
		c.obs.Acked(r.event, r.ageAt(now))
	}
	return n
}

func (c *completer) writeNacks(ctx context.Context, results []result) error {
	if len(results) == 0 {
		return nil
	}
	rows, failures := make([]*row, len(results)), make([]Failure, len(results))
	for i, r := range results {
		rows[i], failures[i] = r.row, r.failure
	}
	var lost []Lease
	err := storeCall(ctx, func(ctx context.Context) (err error) {
		lost, err = c.store.Nack(ctx, failures)
		return err
	})
	if err != nil {
		return err
	}
	var done Outcome
	isLost := setOf(lost)
	for i, f := range failures {
		switch e := rows[i].event; {
		case isLost[f.Lease]:
		case f.Unspent:
			done.Released++
		case f.Reason == "":
			done.Failed++
		default:
			c.died(Death{ID: e.ID, Topic: e.Topic, Attempts: e.Attempt, Reason: f.Reason}, f.Error)
		}
	}
	c.settle(nack, rows, lost, done)
	return nil
}

// settle ends the flight of rows that the database has taken, or refused as lost.
func (c *completer) settle(v verb, rows []*row, lost []Lease, done Outcome) {
	c.mu.Lock()
	c.done.Delivered += done.Delivered
	c.done.Released += done.Released
	c.done.Failed += done.Failed
	c.mu.Unlock()
	if len(lost) > 0 {
		c.leasesLost(len(lost), string(v))
	}
	c.written(rows)
}

// died reports a row that has become dead. why is its last error, if this process knows it.
func (c *completer) died(d Death, why string) {
	c.mu.Lock()
	c.done.Dead++
	c.mu.Unlock()
	c.obs.Died(d)
	c.log.Warn("an event is dead and waits for a person", "event", d.ID, "topic", d.Topic,
		"attempts", d.Attempts, "reason", d.Reason, "error", why)
}

// leasesLost reports rows that another worker has taken over. It is no failure (CONTRACT C-23).
func (c *completer) leasesLost(n int, refused string) {
	c.mu.Lock()
	c.done.Lost += n
	c.mu.Unlock()
	c.obs.LeaseLost(n)
	c.log.Warn("leases were lost; other workers have the rows, or an earlier try was written after all",
		"rows", n, "refused", refused)
}

// outcome is what was written back so far.
func (c *completer) outcome() Outcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done
}

// unwritten is not nil while the database does not take outcomes.
func (c *completer) unwritten() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failing == nil {
		return nil
	}
	return fmt.Errorf("%d outcomes are not written back: %w; once their leases expire the rows are delivered again", c.waiting.len(), c.failing)
}
