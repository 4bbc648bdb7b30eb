package dispatcher

import (
	"log/slog"
	"time"

	"github.com/google/uuid"
)

// Config says how a [Dispatcher] works. The zero value of a field means its default.
type Config struct {
	// Topics to deliver. None means all of the namespace, found again now and then.
	Topics []string
	// Lease is how long a claimed row is held before another worker may claim it. A delivery that
	// takes longer extends it. Defaults to 30s.
	Lease time.Duration
	// PollInterval is the longest wait between two looks for work; under load the engine looks
	// more often. At most Lease / 3 (CONTRACT C-28). Defaults to 1s.
	PollInterval time.Duration
	// BatchSize is the most rows that one claim takes. A claim takes fewer where the deliveries are
	// slow: about what they do in a third of a second. Defaults to 500.
	BatchSize int
	// Concurrency is how many Sink.Deliver calls run at once. While there are several topics, an eighth of
	// the calls, at least one, is left to topics that have none running, so that a destination that does
	// not answer holds up no other (CONTRACT C-32). With 1 nothing can be left. Defaults to 16.
	Concurrency int
	// MaxAttempts is how many attempts a row has before it is dead, unless the row has a limit of its own.
	// Defaults to 20: with the default backoff that is 4 to 8 hours.
	MaxAttempts int
	// DeliveryTimeout is how long one Sink.Deliver call may take. Then its context ends; a call that does not
	// return soon after is stuck: its rows are retried, and their leases no longer extended (CONTRACT C-34).
	// Make it at least as long as the sink's own timeout, which says more about what went wrong. Defaults to 5m.
	DeliveryTimeout time.Duration
	// Backoff is the policy of retries. Defaults to DefaultBackoff().
	Backoff Backoff
	// Ordering says whether events of one key wait for each other (CONTRACT C-50). Defaults to
	// OrderingNone.
	Ordering Ordering
	// OnDead says what a dead event means for the later ones of its key, with OrderingKey. Defaults
	// to OnDeadContinue.
	OnDead OnDead
	// GracePeriod is how long Run waits for deliveries in flight after its context ends.
	// Defaults to 30s.
	GracePeriod time.Duration
	// MaxBytes bounds the bytes of events in this process, payloads and headers: claimed and not yet written
	// back. One event may pass it alone (CONTRACT C-35). Defaults to 32 MiB.
	MaxBytes int64
	// Paused keeps the engine from claiming until Resume; it still counts and answers. Defaults to false.
	Paused bool
	// Logger gets what an operator needs to know, never a payload. Defaults to slog.Default().
	Logger *slog.Logger
	// Observer is told of every outcome. Defaults to none.
	Observer Observer
}

// Ordering says in which order events are delivered (CONTRACT C-50).
type Ordering string

// The orderings.
const (
	// OrderingNone: events overtake each other.
	OrderingNone Ordering = "None"
	// OrderingKey: no event of a key (the partition key, else the aggregate id) is delivered before an
	// earlier one of the same key is delivered or dead. Events without a key have no order.
	OrderingKey Ordering = "Key"
)

// OnDead says what a dead event means for the later ones of its key.
type OnDead string

// The choices.
const (
	// OnDeadContinue: the key goes on with its next event.
	OnDeadContinue OnDead = "Continue"
	// OnDeadBlock: the key waits until a person replays or discards the dead event.
	OnDeadBlock OnDead = "Block"
)

// Observer is told what happens, for metrics. Its methods are called from several goroutines and
// must not block.
type Observer interface {
	// Claimed: n rows of the topic were leased.
	Claimed(topic string, n int)
	// Delivered: the sink confirmed the event. The delivery began waited after the event's creation, and
	// took so long. waited is from the creation to this worker's claim on the database's clock, plus
	// the time since then.
	Delivered(e *Event, waited, took time.Duration)
	// Acked: the row is marked delivered, latency after the event's creation, measured likewise.
	Acked(e *Event, latency time.Duration)
	// Failed: the delivery failed after took; delay is how long the row waits (0 when it is dead, or
	// given back at once).
	Failed(e *Event, err error, took, delay time.Duration)
	// Died: a row became dead.
	Died(d Death)
	// LeaseLost: n write-backs were refused because another worker holds the row.
	LeaseLost(n int)
	// Refused: the database refused the outcomes of n rows, which are delivered again when their leases end.
	Refused(n int)
}

// Snapshot is what a running [Dispatcher] knows of itself, without asking the database.
type Snapshot struct {
	// Draining is true after Run's context has ended.
	Draining bool
	// Paused is true while nothing is claimed because of Config.Paused or Pause.
	Paused bool
	// LookedAt is when the claim loop last went round, on this process's clock; zero before Run. It
	// does so every few seconds even when there is nothing to do: one that has not for a minute is
	// stuck.
	LookedAt time.Time
	// InFlightRows and InFlightBytes are claimed and not yet written back.
	InFlightRows  int
	InFlightBytes int64
	// Source is the state of the database as the engine sees it.
	Source LinkState
	// Outcomes is not OK while the database answers, and refuses what is written back of some rows.
	Outcomes LinkState
	// Stuck are the calls of the sink that do not return although their time is over, the longest first, at
	// most StuckListed; StuckCalls is their number.
	Stuck      []StuckCall
	StuckCalls int
	// Schema is the last comparison; its State is empty before the first.
	Schema Schema
	// Sink is the state of the destination as a whole, and Breaker why claiming is paused, if it is.
	Sink    LinkState
	Breaker BreakerState
	// Held are the topics that are held back while others go on, by name. Empty while Breaker is
	// not Closed: then all are.
	Held []HeldTopic
	// Gated are the topics that are held for the type of their next event, by name: see [Dispatcher.Admit].
	Gated []GatedTopic
	// EventTypes are the types of the events that were claimed, by name: the first EventTypesListed that came.
	EventTypes []SeenEventType
	// LastError is the newest failure of a delivery, and when it was seen; empty for none.
	LastError   string
	LastErrorAt time.Time
}

// StuckListed is the most calls in [Snapshot.Stuck].
const StuckListed = 20

// StuckCall is a call of Sink.Deliver that did not return when it was cancelled. It takes a place of
// Config.Concurrency for as long as it lasts (CONTRACT C-34).
type StuckCall struct {
	Topic string
	// EventID is the first event of the call, and Events their number.
	EventID uuid.UUID
	Events  int
	// Since is when the call began, on this process's clock.
	Since time.Time
}

// HeldTopic is a topic whose destination fails while others' do not.
type HeldTopic struct {
	Topic string
	// Breaker is Unreachable or Refusing.
	Breaker BreakerState
	// Err is the newest failure, and Since when the topic was first held, on this process's clock.
	Err   error
	Since time.Time
}

// LinkState is the state of something at the other end of a connection.
type LinkState struct {
	// Known is false until it was tried once.
	Known bool
	// OK is true when the last try succeeded.
	OK bool
	// Err is the last try's error when OK is false.
	Err error
	// Since is when OK last changed, on this process's clock.
	Since time.Time
}

// BreakerState says whether and why claiming is held back (CONTRACT C-32).
type BreakerState string

// The states of the breaker.
const (
	// BreakerClosed: claiming goes on.
	BreakerClosed BreakerState = "Closed"
	// BreakerUnreachable: the destination cannot be reached; claiming waits for a probe to succeed.
	BreakerUnreachable BreakerState = "Unreachable"
	// BreakerRefusing: the destination answers, and refused the last deliveries one and all; a few
	// rows at a time are tried until one succeeds.
	BreakerRefusing BreakerState = "Refusing"
)
