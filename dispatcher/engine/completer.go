package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

const (
	// Outcomes are written when the last flush has returned and either flushAt of them wait or flushAfter
	// has passed since the first of them.
	flushAt    = 2000
	flushAfter = 3 * time.Millisecond
	// chunkRows is the most rows of one statement.
	chunkRows = 2000
)

// verb is what is done with a row: the Store method that writes it back.
type verb string

const (
	ack     verb = "ack"
	nack    verb = "nack"
	release verb = "release"
)

// verbs are all, in the order in which a flush writes them.
var verbs = [...]verb{ack, release, nack}

// outcome is what to write back of a row.
type outcome struct {
	verb    verb
	failure dispatcher.Failure // of a nack, and of a release its Delay and Error
}

type result struct {
	row *row
	outcome
}

// completer writes outcomes back, many in one statement (CONTRACT C-35). What the database does not take
// because it is unreachable is kept and tried again, however late: a lease that is over is either still ours, and
// then the write-back spares a duplicate, or the store refuses it and nothing changes (CONTRACT C-23). What it
// refuses for its content, or takes too long over, harms no other: see suspect (CONTRACT C-33).
type completer struct {
	d       *Dispatcher
	written func([]*row) // the flight forgets these rows

	bells bells
	size  size // of the flush's statements

	mu       sync.Mutex
	waiting  map[verb][]result
	rows     int // in waiting
	suspects map[kind]*suspect
	failing  error   // of the last flush
	done     Outcome // so far
}

// bells wake the goroutines of a completer.
type bells struct {
	first, full chan struct{} // a result waits; flushAt of them do
	suspected   chan struct{} // a suspect's result waits
	again       chan struct{} // the database may be back
}

func newCompleter(d *Dispatcher, written func([]*row)) *completer {
	return &completer{
		d: d, written: written,
		bells: bells{first: make(chan struct{}, 1), full: make(chan struct{}, 1), suspected: make(chan struct{}, 1), again: make(chan struct{}, 1)},
		size:  size{chunkRows, storeTimeout}, waiting: map[verb][]result{}, suspects: map[kind]*suspect{},
	}
}

// add takes results to be written back soon.
func (c *completer) add(results []result) {
	if len(results) == 0 {
		return
	}
	c.mu.Lock()
	first := c.rows == 0
	for _, r := range results {
		c.waiting[r.verb] = append(c.waiting[r.verb], r)
	}
	c.rows += len(results)
	full := c.rows >= flushAt
	c.mu.Unlock()
	if first {
		notify(c.bells.first)
	}
	if full {
		notify(c.bells.full)
	}
}

// release gives back rows whose delivery has not begun.
func (c *completer) release(rows []*row) {
	c.add(each(rows, func(r *row) result {
		return result{r, outcome{verb: release, failure: dispatcher.Failure{Lease: r.event.Lease(), Delay: r.wait}}}
	}))
}

// loop writes back until stop is closed, and then what is left until ctx ends: suspects' outcomes by
// a goroutine of their own, which ends last.
func (c *completer) loop(ctx context.Context, stop <-chan struct{}) {
	var suspects sync.WaitGroup
	handedOver := make(chan struct{})
	suspects.Go(func() { c.flushLoop(ctx, c.bells.suspected, handedOver, c.flushSuspects) })
	c.flushLoop(ctx, c.bells.first, stop, c.flush)
	close(handedOver)
	suspects.Wait()
	c.mu.Lock()
	for _, s := range c.suspects {
		if c.rows += len(s.waiting); len(s.waiting) > 0 && c.failing == nil {
			c.failing = errSuspects
		}
	}
	c.mu.Unlock()
	if err := c.unwritten(); err != nil {
		c.d.cfg.Logger.Error("stopped before every outcome was written back", "error", err)
	}
}

// flushLoop flushes when something waits, and in the end. Once it stops, it tries often: it has writeFor at most.
func (c *completer) flushLoop(ctx context.Context, some, stop <-chan struct{}, flush func(context.Context) error) {
	retry := ramp{100 * time.Millisecond, 5 * time.Second, 0}
	for stopped := false; !stopped; {
		select {
		case <-some:
			pause(flushAfter, c.bells.full, stop)
		case <-stop:
			stopped = true
		}
		for flush(ctx) != nil && ctx.Err() == nil {
			if stopped {
				pause(retry.min, nil, ctx.Done())
				continue
			}
			pause(retry.next(rand.Float64), c.bells.again, stop)
			stopped = ended(stop)
		}
		retry.reset()
	}
}

// ended reports whether a channel is closed.
func ended(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// retry makes a flush that waits for the database try at once.
func (c *completer) retry() { notify(c.bells.again) }

// flush writes what waits, each verb in statements of at most chunkRows. What was not written when the database fails
// is kept, and what a statement held that was refused or took too long is handed over to suspects.
func (c *completer) flush(ctx context.Context) (err error) {
	c.mu.Lock()
	all := c.waiting
	c.waiting, c.rows = make(map[verb][]result, len(verbs)), 0
	c.mu.Unlock()

	for _, v := range verbs {
		for all[v] = c.sift(v, all[v], nil); err == nil && len(all[v]) > 0; {
			part := all[v][:min(len(all[v]), c.size.rows)]
			switch err = c.send(ctx, v, part, &c.size); {
			case err == nil:
				all[v] = all[v][len(part):]
			case isOdd(err):
				all[v], err = c.sift(v, all[v], part), nil
			}
		}
	}
	c.mu.Lock()
	back := c.failing != nil && err == nil
	c.failing = err
	for v, results := range all { // before what has come since
		c.rows += len(results)
		c.waiting[v] = append(results, c.waiting[v]...)
	}
	c.mu.Unlock()
	if err != nil {
		c.d.health.sourceFailed(err)
	} else if back {
		c.d.changed() // the claim loop waits for this
	}
	return err
}

// send writes results in one statement.
func (c *completer) send(ctx context.Context, v verb, results []result, size *size) error {
	began := time.Now()
	lost, err := storeCall(ctx, func(ctx context.Context) ([]dispatcher.Lease, error) { return c.call(ctx, v, results) })
	size.learn(len(results), time.Since(began), err)
	if err == nil {
		c.settle(v, results, lost)
	}
	return err
}

// call is the method of the store.
func (c *completer) call(ctx context.Context, v verb, results []result) (lost []dispatcher.Lease, err error) {
	switch v {
	case ack:
		return c.d.store.Ack(ctx, each(results, func(r result) dispatcher.Lease { return r.row.event.Lease() }))
	case release:
		return c.d.store.Release(ctx, each(results, func(r result) dispatcher.Return {
			return dispatcher.Return{Lease: r.failure.Lease, Delay: r.failure.Delay, Error: r.failure.Error}
		}))
	default:
		return c.d.store.Nack(ctx, each(results, func(r result) dispatcher.Failure { return r.failure }))
	}
}

// settle ends the flight of rows that the database has taken, or refused as lost.
func (c *completer) settle(v verb, results []result, lost []dispatcher.Lease) {
	isLost := setOf(lost)
	now := time.Now()
	var done Outcome
	for _, r := range results {
		e := r.row.event
		switch {
		case len(lost) > 0 && isLost[e.Lease()]:
		case v == ack:
			done.Delivered++
			c.d.cfg.Observer.Acked(e, r.row.sinceCreation(now))
		case v == release:
			done.Released++
		case r.failure.Reason == "":
			done.Failed++
		default:
			c.deadLettered(newDeadEvent(e, r.failure), r.failure.Error)
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
	c.written(each(results, func(r result) *row { return r.row }))
}

// newDeadEvent is an event that a failure made dead.
func newDeadEvent(e *dispatcher.Event, f dispatcher.Failure) dispatcher.DeadEvent {
	return dispatcher.DeadEvent{
		ID: e.ID, Topic: e.Topic, Attempts: e.Attempt, Reason: f.Reason,
		Cause: f.Cause, Fingerprint: dispatcher.Fingerprint(e.Topic, f.Reason, f.Cause),
	}
}

// deadLettered reports a row that has become dead. why is its last error, if this process knows it.
func (c *completer) deadLettered(d dispatcher.DeadEvent, why string) {
	c.mu.Lock()
	c.done.Dead++
	c.mu.Unlock()
	c.d.cfg.Observer.DeadLettered(d)
	c.d.cfg.Logger.Warn("an event is dead and waits for a person", "event", d.ID, "topic", d.Topic,
		"attempts", d.Attempts, "reason", d.Reason, "group", d.Fingerprint, "error", why)
}

// expired reports rows of a topic whose time was over at their claim. It is not a failure (CONTRACT C-18).
func (c *completer) expired(topic string, n int) {
	c.mu.Lock()
	c.done.Expired += n
	c.mu.Unlock()
	c.d.cfg.Observer.Expired(topic, n)
}

// leasesLost reports rows that another worker has taken over, or that were deleted. It is not a failure (CONTRACT C-23).
func (c *completer) leasesLost(n int, refused string) {
	c.mu.Lock()
	c.done.Lost += n
	c.mu.Unlock()
	c.d.cfg.Observer.LeaseLost(n)
	c.d.cfg.Logger.Warn("leases were lost; other workers have the rows, the rows were deleted, or an earlier try was written after all",
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
	return fmt.Errorf("%d outcomes are not written back: %w; once their leases expire the rows are delivered again", c.rows, c.failing)
}
