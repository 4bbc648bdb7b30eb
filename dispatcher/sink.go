package dispatcher

import (
	"context"
	"fmt"
)

// Sink publishes events to one destination. What a Sink must do is spelled out, and tested, by
// sinktest.Exercise.
//
// All methods are safe for concurrent use.
type Sink interface {
	// Deliver publishes the batch and returns a result for each event: result i is about batch[i], and nil
	// means that the destination confirmed it. An error has the sink's kind and the destination's code as its cause:
	// see [WithCause]. The batch has 1 to BatchSize events of one topic.
	// It returns soon after ctx ends; events without an outcome by then carry ctx's error. Calls that
	// follow each other may have the same ctx, which ends some time after the last of them.
	Deliver(ctx context.Context, batch []*Event) []error

	// Probe checks that the destination can be reached, and takes events as far as that can be checked,
	// without publishing anything. When the configuration names the one place that every event goes to (a
	// topic, a stream, a table), it checks that: a place that is missing, or that this login may not write
	// to, is [Unavailable], and so are deliveries that are refused for it. When the events say where they
	// go, it checks the destination alone. The engine calls it at start and while claiming is paused.
	// nil means reachable. An error says why it is not. It returns soon after ctx ends: until then nothing is claimed, or,
	// where other topics are delivered, the paused ones stay so.
	Probe(ctx context.Context) error

	// BatchSize is the most events that one Deliver takes, at least 1. It never changes.
	BatchSize() int

	// Close releases connections. No other call follows it.
	// It fails when they cannot be released; they are not used again either way.
	Close(ctx context.Context) error
}

// Handlers is a Sink in the same process: one function per topic, called for one event at a time.
// An event whose topic has no function fails with [ErrNoHandler] and is retried (CONTRACT C-29).
type Handlers map[string]func(ctx context.Context, event *Event) error

var _ Sink = Handlers(nil)

// Deliver calls the topic's handler for each event. A topic without one has the error [ErrNoHandler].
func (h Handlers) Deliver(ctx context.Context, batch []*Event) []error {
	errs := make([]error, len(batch))
	for i, e := range batch {
		if handle, ok := h[e.Topic]; ok {
			errs[i] = handle(ctx, e)
		} else {
			errs[i] = fmt.Errorf("topic %q: %w; register one, or leave the topic out of this dispatcher", e.Topic, ErrNoHandler)
		}
	}
	return errs
}

// Probe succeeds: the handlers are in this process. It never fails.
func (Handlers) Probe(context.Context) error { return nil }

// BatchSize is 1: a handler takes one event.
func (Handlers) BatchSize() int { return 1 }

// Close does nothing. It never fails.
func (Handlers) Close(context.Context) error { return nil }
