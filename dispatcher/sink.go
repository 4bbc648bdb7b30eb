package dispatcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
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

// Ordered is a [Sink] that may keep the order of a key in a call. With order per key a call of one that does may have several
// events of a key, in their order; a call of another Sink has one.
type Ordered interface {
	Sink
	// KeepsOrder reports whether Deliver never delivers an event that is [Event.Behind] others of its call when one of
	// those was not delivered, whatever fails. It never changes. [InOrder] keeps it for what is delivered one by one; a
	// request that the destination takes as a whole, or not at all, keeps it by itself.
	KeepsOrder() bool
}

// KeepsOrder reports whether a sink is [Ordered], and keeps the order of a key in a call.
func KeepsOrder(s Sink) bool {
	o, ok := s.(Ordered)
	return ok && o.KeepsOrder()
}

// ErrBehind is the error of an event that was not delivered because an earlier one of its key in the same call was not. The
// engine gives its attempt back.
var ErrBehind = errors.New("not delivered, since an earlier event of its key in the same call was not")

// InOrder calls deliver for each event of a batch with its place, one after the other, and returns the errors. An event that is
// [Event.Behind] one that failed fails with [ErrBehind] instead.
func InOrder(batch []*Event, deliver func(i int, e *Event) error) []error {
	errs := make([]error, len(batch))
	var failed map[string]bool
	for i, e := range batch {
		if e.Behind && failed[e.Key()] {
			errs[i] = ErrBehind
		} else if errs[i] = deliver(i, e); errs[i] != nil {
			if failed == nil {
				failed = map[string]bool{}
			}
			failed[e.Key()] = true
		}
	}
	return errs
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

// Event is one claimed row of outbox_events: what a [Sink] publishes.
// Sinks and handlers must treat it as read-only.
type Event struct {
	// ID is the event's UUID (version 7), made by the producer. Consumers dedupe on it; they know
	// it as tracking_id.
	ID uuid.UUID
	// Seq is the order of insertion. It has gaps that fill late: never use it as a cursor.
	Seq int64
	// AggregateSequence is the number of the event in its aggregate, of which committed events have all from 1. 0
	// means that its producer set none.
	AggregateSequence int64
	// Namespace and Topic say which stream the event belongs to.
	Namespace string
	Topic     string
	// TenantID is the tenant the event belongs to, if any.
	TenantID uuid.NullUUID
	// DedupeKey is the producer's idempotency key, unique in its namespace and topic. Empty for none.
	DedupeKey string
	// PartitionKey is the producer's explicit key, if any. See [Event.Key].
	PartitionKey string
	// EventType, AggregateType and AggregateID describe what happened, and to what. Each may be empty.
	EventType     string
	AggregateType string
	AggregateID   string
	// Headers are the producer's: correlation id, trace context (traceparent, tracestate),
	// schema version. Never nil.
	Headers map[string]string
	// Payload is the event's JSON. The engine never reads it and never logs it (CONTRACT C-73).
	Payload json.RawMessage
	// CreatedAt is the database's time of the producer's transaction.
	CreatedAt time.Time
	// ClaimedAt is the database's time of the claim. The engine sets it.
	ClaimedAt time.Time
	// Expires is from when the event is not sent any more: its own time, else the dispatcher's (CONTRACT C-18). Zero for never.
	Expires time.Time
	// Attempt is the part of the retry budget that is used up, this delivery included: from 1. An attempt
	// that was given back is counted again, and a replay begins at 1.
	Attempt int
	// LeaseNumber is the number of the claim: the fencing token. It only rises for a row (CONTRACT C-27).
	LeaseNumber int64
	// Suspicion is 0 unless the row's last lease ended without an outcome: then its delivery may have ended the process
	// (CONTRACT C-21). It is 1, and one more for each delivery that Store.Begin counted since.
	Suspicion int
	// FaultSince is the database's time of the first delivery that failed and gave its attempt back: the destination
	// reported a fault of its own, or could not be reached while others were delivered. Zero for none.
	FaultSince time.Time
	// Behind is true for an event that comes after others of its key in the same call, with order per key: it must not be
	// delivered if one of those is not. The engine sets it, for a Sink that is [Ordered].
	Behind bool
	// MaxAttempts is the row's own retry budget. 0 means the dispatcher's.
	MaxAttempts int
	// Backoff is the row's own policy of retries. nil means the dispatcher's.
	Backoff Backoff
	// Message is what the configuration makes of the message. The engine leaves it empty; package pipeline sets it.
	Message Message
}

// Message says what a message is made of, in addition to the payload.
type Message struct {
	// Bare is true for a message without CloudEvents: the payload with Headers.
	Bare bool
	// Headers are added to the attributes of CloudEvents, or alone, under exactly these names, each of which is there
	// once.
	Headers []Header
}

// Header is a header of a message.
type Header struct{ Name, Value string }

// Key is what messages are partitioned by: the partition key, else the aggregate id, else the
// event id (CONTRACT C-71).
func (e *Event) Key() string {
	switch {
	case e.PartitionKey != "":
		return e.PartitionKey
	case e.AggregateID != "":
		return e.AggregateID
	default:
		return e.ID.String()
	}
}

// Lease names the lease under which the event was claimed.
func (e *Event) Lease() Lease { return Lease{ID: e.ID, Number: e.LeaseNumber} }

// Lease is the right to write a row's outcome back, until another claim takes the row or the outcome is
// written. Ack, nack, extend and release succeed only for it.
type Lease struct {
	ID uuid.UUID
	// Number of the claim. All rows of a claim have the same.
	Number int64
}
