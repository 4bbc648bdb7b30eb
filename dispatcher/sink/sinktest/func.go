package sinktest

import (
	"context"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Func is a sink from functions. The zero value confirms everything, one event per Deliver.
type Func struct {
	// Respond returns the result of one event. It may wait. nil confirms every event.
	Respond func(ctx context.Context, e *dispatcher.Event) error
	// RespondAll, when set, returns the results of a batch, and Respond is not called.
	RespondAll func(ctx context.Context, batch []*dispatcher.Event) []error
	// Check is the Probe. nil succeeds.
	Check func(ctx context.Context) error
	// Max is the BatchSize. Defaults to 1.
	Max int
	// Confirmed, when set, remembers the events whose result is nil.
	Confirmed *Recording
}

var _ dispatcher.Sink = (*Func)(nil)

// Deliver returns what the functions return.
func (f *Func) Deliver(ctx context.Context, batch []*dispatcher.Event) (errs []error) {
	switch {
	case f.RespondAll != nil:
		errs = f.RespondAll(ctx, batch)
	case f.Respond != nil:
		errs = make([]error, len(batch))
		for i, e := range batch {
			errs[i] = f.Respond(ctx, e)
		}
	default:
		errs = make([]error, len(batch))
	}
	if f.Confirmed != nil {
		for i, e := range batch {
			if errs[i] == nil {
				f.Confirmed.remember(e)
			}
		}
	}
	return errs
}

// Probe returns what Check returns. It fails when Check does.
func (f *Func) Probe(ctx context.Context) error {
	if f.Check == nil {
		return nil
	}
	return f.Check(ctx)
}

// BatchSize is Max.
func (f *Func) BatchSize() int { return max(f.Max, 1) }

// Close does nothing. It never fails.
func (*Func) Close(context.Context) error { return nil }
