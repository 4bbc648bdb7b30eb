package dispatcher

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

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
