// Package engine delivers the events of an outbox: a [Dispatcher] claims them from a [dispatcher.Store], hands
// them to a [dispatcher.Sink], and writes the outcomes back. Package dispatcher has the guarantees, the words
// and the state machine of a row.
//
//	d, err := engine.New(store, sink, dispatcher.Config{})
//	if err != nil { … }
//	err = d.Run(ctx)
package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Dispatcher delivers the events of one outbox namespace. Make one with [New], and use it from as
// many goroutines as you like. Any number of processes may run one on the same table: they share
// the rows without overlap.
type Dispatcher struct {
	store  dispatcher.Store
	sink   dispatcher.Sink
	cfg    dispatcher.Config // with defaults
	health *health
	wake   chan struct{} // makes the claim loop claim at once

	mu        sync.Mutex
	run       *run    // nil when neither Run nor RunOnce is running
	flight    *flight // of the last run
	processes int     // what SetPeers said last
	// What SetRateShare said last.
	ratePart  float64
	rateUntil time.Time
}

// New returns a Dispatcher that delivers the store's events to the sink. It connects to nothing.
// Its errors are about cfg, and say what to change: a PollInterval above a third of Lease is
// refused (CONTRACT C-28), as are values out of range.
func New(store dispatcher.Store, sink dispatcher.Sink, cfg dispatcher.Config) (*Dispatcher, error) {
	if store == nil || sink == nil {
		return nil, errors.New("dispatcher: a store and a sink are needed; give New both")
	}
	if n := sink.BatchSize(); n < 1 {
		return nil, fmt.Errorf("dispatcher: the sink's BatchSize is %d; it must be at least 1", n)
	}
	cfg = withDefaults(cfg)
	if err := validate(cfg); err != nil {
		return nil, fmt.Errorf("dispatcher: %w", err)
	}
	d := &Dispatcher{
		store:  store,
		sink:   sink,
		cfg:    cfg,
		health: &health{log: cfg.Logger},
		wake:   make(chan struct{}, 1),

		processes: 1,
		ratePart:  1,
	}
	d.flight = newFlight(context.Background(), cfg, sink.BatchSize(), dispatcher.KeepsOrder(sink), d.changed)
	d.flight.entry.paused = cfg.Paused
	return d, nil
}

// Run claims and delivers events until ctx ends, and then stops in order (CONTRACT C-30): rows whose
// delivery has not begun go back to pending with their attempt at once; deliveries in flight have
// Config.GracePeriod to end, then their contexts are cancelled; outcomes are written back. It returns
// at most GracePeriod + 7s after ctx has ended: 2s for deliveries to notice that they were cancelled
// and 5s for the last write-back. A delivery that does not return by then is left behind, and its
// row is retried.
//
// Run does not end when the database or the destination is unreachable or the schema is not ready: it waits, and
// continues by itself. Its error is nil after ctx has ended; any other is a mistake in the program, such as a second
// Run at the same time. Run does not close the sink.
func (d *Dispatcher) Run(ctx context.Context) error {
	r, err := d.begin(ctx)
	if err != nil {
		return err
	}
	defer d.end()
	r.start()
	r.life.workers.Go(func() { r.claimLoop(ctx) })
	<-ctx.Done()
	r.drain()
	return nil
}

// Outcome counts what [Dispatcher.RunOnce] did with rows.
type Outcome struct {
	// Delivered rows were confirmed by the sink and are marked so.
	Delivered int
	// Failed rows wait for their next attempt.
	Failed int
	// Dead rows had their last attempt or a permanent failure, or were found with no attempt left.
	Dead int
	// Expired rows were claimed after their time, and are not sent.
	Expired int
	// Released rows went back with their attempt: the destination could not be reached, or ctx ended.
	Released int
	// Lost rows were taken over by another worker.
	Lost int
	// Refused rows have an outcome that the database refuses, or takes too long over until their lease is over. They are
	// delivered again when it ends.
	Refused int
}

// RunOnce claims up to n rows that are due, delivers them, writes the outcomes back and returns what
// became of them. It ends early when nothing more is due or when ctx ends; then it stops as Run does.
// Unlike Run it does not wait: when the database or the destination is unreachable, the schema is not ready,
// an event is refused by the database at a claim or a topic is paused by [Dispatcher.Admit], it returns an error with the counts so far.
// What is due behind events that are refused is delivered before, up to a thousand of these.
func (d *Dispatcher) RunOnce(ctx context.Context, n int) (Outcome, error) {
	r, err := d.begin(ctx)
	if err != nil {
		return Outcome{}, err
	}
	defer d.end()
	r.start()
	err = r.claimOnce(ctx, n)
	r.awaitEmpty(ctx)
	r.drain()
	err = errors.Join(err, r.completer.unwritten())
	done, odd := r.completer.outcome(), each(r.flight.topics.refused.rows, func(r refusal) uuid.UUID { return r.id })
	switch s := d.Snapshot(); {
	case err != nil, ctx.Err() != nil:
	case len(s.Gated) > 0:
		err = fmt.Errorf("topic %q is paused: the type of its next event, %q, is not admitted; register a verified consumer of it", s.Gated[0].Topic, s.Gated[0].EventType)
	case len(odd) > 0 && s.Claims.Known && !s.Claims.OK:
		err = fmt.Errorf("the database refuses to lease events: %w; in all %d, of which the first are %v", s.Claims.Err, len(odd), odd[:min(len(odd), 8)])
	case done.Released > 0 && done == (Outcome{Released: done.Released}): // too few calls to open a breaker
		err = dispatcher.Unavailable(fmt.Errorf("the destination took no event: %s", s.LastError))
	}
	return done, err
}

// Wake makes Run claim at once instead of at its next poll. Call it after the commit of a
// transaction that enqueued events in the same process. It never blocks.
func (d *Dispatcher) Wake() { d.changed() }

// changed wakes the claim loop: something that it waits for may have happened.
func (d *Dispatcher) changed() { notify(d.wake) }

// Snapshot is what this process knows of itself. It queries neither the database nor the sink.
func (d *Dispatcher) Snapshot() (s dispatcher.Snapshot) {
	d.health.snapshot(&s)
	d.mu.Lock()
	r, f := d.run, d.flight
	d.mu.Unlock()
	s.Paused = f.controls().isPaused()
	s.Draining = r != nil && r.draining.Load()
	f.controls().snapshot(&s)
	return s
}

// begin makes the one run that a Dispatcher may have at a time.
func (d *Dispatcher) begin(ctx context.Context) (*run, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.run != nil {
		return nil, errors.New("dispatcher: already running; call Run or RunOnce again after it returned, or make a second Dispatcher")
	}
	last := d.flight
	d.run = newRun(context.WithoutCancel(ctx), d)
	d.flight = d.run.flight
	d.flight.entry.paused, d.flight.entry.admits = last.entry.paused, last.entry.admits
	d.flight.controls().setRateShare(d.ratePart, d.rateUntil)
	d.flight.controls().setPeers(d.processes)
	return d.run, nil
}

// takeBack changes what may be delivered. The rows that change returns are released.
func (d *Dispatcher) takeBack(change func(*flight) []*row) {
	d.mu.Lock()
	r, rows := d.run, change(d.flight)
	d.mu.Unlock()
	if r != nil {
		r.completer.release(rows)
	}
	d.changed()
}

func (d *Dispatcher) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.run = nil
}
