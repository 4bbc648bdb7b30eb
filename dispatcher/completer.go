package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// Outcomes are written when the last flush has returned and either so many wait or so much time
// has passed since the first of them.
const (
	flushAt    = 500
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

	mu      sync.Mutex
	waiting map[verb][]result
	count   int     // of waiting
	failing error   // of the last flush
	done    Outcome // so far
}

func newCompleter(d *Dispatcher, written func([]*row)) *completer {
	return &completer{
		store: d.store, health: d.health, obs: d.cfg.Observer, log: d.cfg.Logger, written: written, wake: d.Wake,
		some: make(chan struct{}, 1), full: make(chan struct{}, 1), again: make(chan struct{}, 1),
		waiting: map[verb][]result{},
	}
}

// add takes results to be written back soon.
func (c *completer) add(results []result) {
	if len(results) == 0 {
		return
	}
	c.mu.Lock()
	for _, r := range results {
		c.waiting[r.verb] = append(c.waiting[r.verb], r)
	}
	c.count += len(results)
	full := c.count >= flushAt
	c.mu.Unlock()
	signal(c.some)
	if full {
		signal(c.full)
	}
}

// release gives back rows whose delivery has not begun.
func (c *completer) release(rows []*row) {
	results := make([]result, len(rows))
	for i, r := range rows {
		results[i] = result{r, outcome{verb: release}}
	}
	c.add(results)
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

// flush writes what waits, one statement for each verb. A verb that fails keeps its results and
// those of the verbs after it.
func (c *completer) flush(ctx context.Context) error {
	c.mu.Lock()
	waiting := c.waiting
	c.waiting, c.count = map[verb][]result{}, 0
	c.mu.Unlock()

	var err error
	for _, v := range []verb{ack, release, nack} {
		results := waiting[v]
		if len(results) == 0 {
			continue
		}
		var lost []Lease
		if err == nil {
			lost, err = c.write(ctx, v, results)
		}
		if err != nil {
			c.putBack(v, results)
			continue
		}
		c.settle(v, results, setOf(lost))
	}
	c.mu.Lock()
	back := c.failing != nil && err == nil
	c.failing = err
	c.mu.Unlock()
	if err != nil {
		c.health.sourceFailed(err)
	} else if back {
		c.wake() // the claim loop waits for this
	}
	return err
}

func (c *completer) write(ctx context.Context, v verb, results []result) (lost []Lease, err error) {
	err = storeCall(ctx, func(ctx context.Context) error {
		switch v {
		case ack:
			lost, err = c.store.Ack(ctx, leasesOf(results))
		case release:
			lost, err = c.store.Release(ctx, leasesOf(results))
		default:
			failures := make([]Failure, len(results))
			for i, r := range results {
				failures[i] = r.failure
			}
			lost, err = c.store.Nack(ctx, failures)
		}
		return err
	})
	return lost, err
}

func (c *completer) putBack(v verb, results []result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting[v] = append(results, c.waiting[v]...)
	c.count += len(results)
}

// settle tells the world about rows that the database has taken, or refused as lost.
func (c *completer) settle(v verb, results []result, lost map[Lease]bool) {
	now := time.Now()
	rows := make([]*row, len(results))
	var done Outcome
	for i, r := range results {
		rows[i] = r.row
		e := r.row.event
		switch {
		case lost[e.Lease()]:
		case v == ack:
			done.Delivered++
			c.obs.Acked(e, r.row.age+now.Sub(r.row.claimedAt))
		case v == release:
			done.Released++
		case r.failure.Reason == "":
			done.Failed++
		default:
			c.died(Death{ID: e.ID, Topic: e.Topic, Attempts: e.Attempt, Reason: r.failure.Reason}, r.failure.Error)
		}
	}
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
	return fmt.Errorf("%d outcomes are not written back: %w; once their leases expire the rows are delivered again", c.count, c.failing)
}

func leasesOf(results []result) []Lease {
	leases := make([]Lease, len(results))
	for i, r := range results {
		leases[i] = r.row.event.Lease()
	}
	return leases
}
