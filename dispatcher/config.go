package dispatcher

import (
	"log/slog"
	"time"
)

// Config is the configuration of an engine. The zero value of a field means its default.
type Config struct {
	// Topics to deliver. None means all of the namespace, found again now and then.
	Topics []string
	// Lease is how long a claimed row is held before another worker may claim it. A delivery that
	// takes longer extends it. Defaults to 30s.
	Lease time.Duration
	// PollInterval is the longest wait between two claims; under load the engine claims
	// more often. At most Lease / 3 (CONTRACT C-28). Defaults to 1s.
	PollInterval time.Duration
	// BatchSize is the most rows that one claim takes. A claim takes fewer where the deliveries are
	// slow: about what they do in a third of a second. Bytes bound it too. Defaults to 2000.
	BatchSize int
	// Concurrency is how many Sink.Deliver calls run at once. While there are several topics, an eighth of
	// the calls, at least one, is left to topics without a running one, so that a destination that does not
	// respond delays no other (CONTRACT C-32). With 1 none is left. With Auto the engine finds it for each topic
	// (CONTRACT C-38). Defaults to 16.
	Concurrency int
	// MaxConcurrency bounds Concurrency with Auto: the sum over all live processes of the dispatcher, of which
	// SetPeers of package engine says how many there are. Defaults to 256.
	MaxConcurrency int
	// RateLimit is the most events whose delivery begins, retries too, of all processes that share it: see SetRateShare
	// of package engine. Defaults to none.
	RateLimit Rate
	// TopicRateLimits of topics, by their names, in addition to RateLimit. Defaults to none.
	TopicRateLimits map[string]Rate
	// TenantRateLimit is the most events of each tenant of a topic that are claimed, of all processes of the store's
	// dispatcher (CONTRACT C-51). It needs FairnessTenant. Defaults to none.
	TenantRateLimit Rate
	// Fairness says whether the tenants of a topic have their turns (CONTRACT C-37). FairnessTenant needs a store that can do
	// it, and OrderingNone. Defaults to FairnessNone.
	Fairness Fairness
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
	// back. An event that is larger than all of it is dead as poison_message, and is not read (CONTRACT C-35).
	// Defaults to 32 MiB.
	MaxBytes int64
	// Paused keeps the engine from claiming until Resume; it still counts and reports. Defaults to false.
	Paused bool
	// Logger gets what an operator needs to know, never a payload. Defaults to slog.Default().
	Logger *slog.Logger
	// Observer is notified of every outcome. Defaults to none.
	Observer Observer
}

// Rate is a number of events in a time. They are spread evenly over it. The zero Rate is none.
type Rate struct {
	// Events is how many, at least 1.
	Events int
	// Period is the time, at least a millisecond.
	Period time.Duration
}

// Auto is the value of [Config.Concurrency] with which the engine finds what a destination bears.
const Auto = -1

// Ordering says in which order events are delivered (CONTRACT C-50).
type Ordering string

// Values of [Ordering].
const (
	// OrderingNone: events overtake each other.
	OrderingNone Ordering = "None"
	// OrderingKey: no event of a key (the partition key, else the aggregate id) is delivered before an
	// earlier one of the same key is delivered or dead. Events without a key have no order.
	OrderingKey Ordering = "Key"
)

// Fairness says whose events wait for whose.
type Fairness string

// Values of [Fairness].
const (
	// FairnessNone: the events of a topic are delivered about in the order in which they became due.
	FairnessNone Fairness = "None"
	// FairnessTenant: the tenants of a topic are delivered in turn. The events without a tenant are those of one more.
	FairnessTenant Fairness = "Tenant"
)

// OnDead says what a dead event means for the later ones of its key.
type OnDead string

// Values of [OnDead].
const (
	// OnDeadContinue: the key continues with its next event.
	OnDeadContinue OnDead = "Continue"
	// OnDeadBlock: the key waits until a person replays or discards the dead event.
	OnDeadBlock OnDead = "Block"
)

// Observer is notified of what happens, for metrics. Its methods are called from several goroutines and
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
	// DeadLettered: a row became dead.
	DeadLettered(d DeadEvent)
	// Expired: the time of n rows of the topic was over at their claim (CONTRACT C-18).
	Expired(topic string, n int)
	// LeaseLost: n write-backs were refused because another worker holds the row.
	LeaseLost(n int)
	// Refused: the database refused the outcomes of n rows, or took too long over them until their leases were over. They are
	// delivered again when their leases end.
	Refused(n int)
	// ClaimRefused: the database refused to lease a row, which is left alone for a while.
	ClaimRefused()
}
