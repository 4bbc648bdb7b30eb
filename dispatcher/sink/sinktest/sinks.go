package sinktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Recording delivers everything, and remembers it. The zero value takes one event per Deliver.
type Recording struct {
	// Max is the BatchSize. Defaults to 1.
	Max int

	mu      sync.Mutex
	events  []*dispatcher.Event
	changed chan struct{} // closed at the next delivery
}

var _ dispatcher.Sink = (*Recording)(nil)

// Deliver remembers the batch, unless ctx has ended.
func (r *Recording) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	if err := ctx.Err(); err != nil {
		return all(batch, interrupted(err))
	}
	r.remember(batch...)
	return make([]error, len(batch))
}

func (r *Recording) remember(batch ...*dispatcher.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, batch...)
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// Events returns what was delivered so far, in order of delivery.
func (r *Recording) Events() []*dispatcher.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// Wait returns when at least n events were delivered, or with ctx's error.
func (r *Recording) Wait(ctx context.Context, n int) error {
	for {
		r.mu.Lock()
		have := len(r.events)
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		changed := r.changed
		r.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d events were delivered: %w", have, n, ctx.Err())
		}
	}
}

// Probe succeeds. It never fails.
func (*Recording) Probe(context.Context) error { return nil }

// BatchSize is Max.
func (r *Recording) BatchSize() int { return max(r.Max, 1) }

// Close does nothing. It never fails.
func (*Recording) Close(context.Context) error { return nil }

// Refusing fails the events that Refuse has an error for, and hands the others on.
type Refusing struct {
	dispatcher.Sink
	// Refuse returns the event's error, or nil.
	Refuse func(*dispatcher.Event) error
}

// Deliver returns for each event its own error, or the inner sink's.
func (r *Refusing) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	errs := make([]error, len(batch))
	for i, e := range batch {
		if errs[i] = r.Refuse(e); errs[i] == nil {
			errs[i] = r.Sink.Deliver(ctx, batch[i:i+1])[0]
		}
	}
	return errs
}

// Slow waits before it hands a batch on.
type Slow struct {
	dispatcher.Sink
	// Delay is the wait.
	Delay time.Duration
}

// Deliver waits for Delay, or for ctx's end, and hands the batch on.
func (s *Slow) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	timer := time.NewTimer(s.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return s.Sink.Deliver(ctx, batch)
	case <-ctx.Done():
		return all(batch, interrupted(ctx.Err()))
	}
}

// Hanging takes a batch and never returns before ctx's end.
type Hanging struct {
	dispatcher.Sink
	// Begun gets each batch whose delivery began, when it is not nil.
	Begun chan []*dispatcher.Event
}

// Deliver waits for ctx's end.
func (h *Hanging) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	if h.Begun != nil {
		select {
		case h.Begun <- batch:
		case <-ctx.Done():
		}
	}
	<-ctx.Done()
	return all(batch, interrupted(ctx.Err()))
}

// Switch is a destination that can be switched off. While Down is true nothing is handed on, and
// everything is [dispatcher.Unavailable].
type Switch struct {
	dispatcher.Sink
	Down atomic.Bool
}

var errDown = dispatcher.Unavailable(errors.New("the destination is switched off; switch it on"))

// Deliver hands the batch on, unless the destination is down.
func (s *Switch) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	if s.Down.Load() {
		return all(batch, errDown)
	}
	return s.Sink.Deliver(ctx, batch)
}

// Probe fails while the destination is down.
func (s *Switch) Probe(ctx context.Context) error {
	if s.Down.Load() {
		return errDown
	}
	return s.Sink.Probe(ctx)
}

func all(batch []*dispatcher.Event, err error) []error {
	return slices.Repeat([]error{err}, len(batch))
}

func interrupted(err error) error { return fmt.Errorf("the delivery was interrupted: %w", err) }
