package dispatcher

import (
	"time"

	"github.com/google/uuid"
)

// Snapshot is what a running engine knows of itself, without a query to the database.
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
	// Outcomes is not OK while the database responds, and refuses what is written back of some rows.
	Outcomes LinkState
	// Claims is not OK while the database responds, and refuses to lease some rows: until a while after the last refusal, which
	// Claims.Err has. ClaimsStopped is true while it refuses each topic that is claimed from, so that nothing is delivered.
	Claims        LinkState
	ClaimsStopped bool
	// Stuck are the calls of the sink that do not return although their time is over, the longest first, at
	// most StuckListed; StuckCalls is their number.
	Stuck      []StuckCall
	StuckCalls int
	// NoRoom is true while nothing is claimed because the events of stuck calls take all of Config.MaxBytes, but for what
	// a topic that is alone leaves.
	NoRoom bool
	// Schema is the last comparison; its State is empty before the first.
	Schema Schema
	// Sink is the state of the destination as a whole, and Breaker why claiming is paused, if it is.
	Sink    LinkState
	Breaker BreakerState
	// PausedTopics are the topics that are paused while others are delivered, by name. Empty while Breaker is
	// not Closed: then all are.
	PausedTopics []PausedTopic
	// Gated are the topics that are paused for the type of their next event, by name: see Admit of package engine.
	Gated []GatedTopic
	// LimitedBy is what keeps the dispatcher from delivering more. TopicLimits are the topics that something limits, in
	// the order of the reasons and then by name: the first TopicLimitsListed.
	LimitedBy LimitedBy
	// Concurrency is how many calls of the sink this process may have at once.
	Concurrency int
	// RatePart is the part of the rate limits that this process may use now, from 0 to 1: see SetRateShare of package engine.
	// Nil without a limit that processes share.
	RatePart *float64
	// Decisions counts how often limits of topics were changed, by reason; nil without [Auto].
	Decisions   map[string]int
	TopicLimits []TopicLimit
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

// PausedTopic is a topic whose destination fails while others' do not.
type PausedTopic struct {
	Topic string
	// Breaker is Unreachable or Refusing.
	Breaker BreakerState
	// Err is the newest failure, and Since when the topic was first paused, on this process's clock.
	Err   error
	Since time.Time
}

// GatedTopic is a topic that is paused because its next event has a type that is not admitted: see Admit of package engine.
type GatedTopic struct {
	Topic string
	// EventType is that event's type, which may be empty.
	EventType string
	// Since is when the topic was first paused, on this process's clock.
	Since time.Time
}

// EventTypesListed is the most event types in [Snapshot.EventTypes].
const EventTypesListed = 64

// SeenEventType is a type of which the process has claimed an event.
type SeenEventType struct {
	Type string
	// LastSeen is the day of the last one, in UTC, on this process's clock.
	LastSeen time.Time
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
	// BreakerClosed: rows are claimed.
	BreakerClosed BreakerState = "Closed"
	// BreakerUnreachable: the destination cannot be reached; claiming waits for a probe to succeed.
	BreakerUnreachable BreakerState = "Unreachable"
	// BreakerRefusing: the destination responds, and refused all of the last deliveries; half-open probes of a few
	// rows are made until one succeeds.
	BreakerRefusing BreakerState = "Refusing"
)

// LimitedBy says what keeps a topic, or a dispatcher, from delivering more than it does now: what its oldest due row waits for, most of
// the time in the last seconds. It is empty until that is known, and while nothing is claimed because the dispatcher
// is paused, draining or not running.
type LimitedBy string

// What may limit. A dispatcher is limited by the first of these that limits one of its topics.
const (
	// LimitedByConcurrency: all calls of the sink that may run at once are running, and events wait for one. More
	// concurrency or another process delivers more.
	LimitedByConcurrency LimitedBy = "Concurrency"
	// LimitedByDatabase: calls of the sink wait for claims, or outcomes wait to be written back; or the database is
	// unreachable, its schema is not ready, or it refuses the topic's claims or outcomes; or the process has no part of the
	// rate limits.
	LimitedByDatabase LimitedBy = "Database"
	// LimitedByRate: a rate limit of the configuration is used up: the dispatcher's, the topic's, or that of a tenant with
	// due events.
	LimitedByRate LimitedBy = "Rate"
	// LimitedByDestination: the destination takes no more. It is unreachable, refuses every event, requested a pause,
	// or more calls at once do not deliver more.
	LimitedByDestination LimitedBy = "Destination"
	// LimitedByOrder: with OrderingKey, the events that are due wait for earlier ones of their keys.
	LimitedByOrder LimitedBy = "Order"
	// LimitedByConsumer: the type of the next event is not admitted: see Admit of package engine.
	LimitedByConsumer LimitedBy = "Consumer"
	// LimitedByIdle: there is nothing to do: what is due is delivered at once.
	LimitedByIdle LimitedBy = "Idle"
)

// TopicLimit is what limits a topic.
type TopicLimit struct {
	Topic string
	// LimitedBy is never empty, and never Idle.
	LimitedBy LimitedBy
	// Concurrency is how many calls of the sink the topic may have at once in this process.
	Concurrency int
}

// TopicLimitsListed is the most topics in [Snapshot.TopicLimits].
const TopicLimitsListed = 8
