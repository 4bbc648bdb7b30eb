// Package status is the way back between the two planes: what a dispatcher says on /status, and
// the controller reads. It is plain data, and never holds a payload or a secret.
package status

import "time"

// Path is where a dispatcher serves its Status as JSON: the whole of it for callers on its own machine or
// in its pod, a brief one for all others.
const Path = "/status"

// Status is what one dispatcher process knows.
type Status struct {
	// Name, Namespace and Topics are the configuration's; no topics means all.
	Name      string   `json:"name" brief:"200"`
	Namespace string   `json:"namespace" brief:"200"`
	Topics    []string `json:"topics,omitempty" brief:"-"`
	// Version is the binary's; Worker is this process's id in locked_by.
	Version string `json:"version" brief:"200"`
	Worker  string `json:"worker" brief:"200"`
	// State is Running, Paused or Draining.
	State string `json:"state"`
	// StartedAt is the process's start, on its own clock.
	StartedAt time.Time `json:"startedAt"`
	// Source is the database, Schema its version, Sink the destination.
	Source Link   `json:"source"`
	Schema Schema `json:"schema"`
	Sink   Link   `json:"sink"`
	// PausedTopics are the topics that are paused while others are delivered, by name.
	// Empty while the destination as a whole fails: then every topic is paused. PausedTopicCount counts them.
	PausedTopics     []PausedTopic `json:"pausedTopics,omitempty" brief:"8,200"`
	PausedTopicCount int           `json:"pausedTopicCount,omitempty"`
	// AllTopicsPaused is true when every topic that has events to deliver is paused or gated, so that none is delivered.
	AllTopicsPaused bool `json:"allTopicsPaused,omitempty"`
	// Gated are topics that are paused because the type of their next event has no verified consumer (CONTRACT C-82), by
	// name. GatedTopics counts them. The destination has no part in that.
	Gated       []GatedTopic `json:"gated,omitempty" brief:"4"`
	GatedTopics int          `json:"gatedTopics,omitempty"`
	// LimitedBy is what keeps the process from delivering more: Concurrency, Database, Rate, Destination, Order, Consumer,
	// or Idle when there is nothing to do. Empty until that is known, and while State is not Running.
	LimitedBy string `json:"limitedBy,omitempty"`
	// TopicLimits are the topics that something limits, those with the dispatcher's own reason first, and of those that wait for
	// calls the one that has had none for longest: at most TopicLimitsListed.
	TopicLimits []TopicLimit `json:"topicLimits,omitempty" brief:"8"`
	// StuckCalls counts the calls of the sink that do not return although their time is over; Stuck lists the
	// first 20 of them.
	StuckCalls int         `json:"stuckCalls,omitempty"`
	Stuck      []StuckCall `json:"stuck,omitempty" brief:"-"`
	// Sharing names other dispatchers that run and deliver topics of this one, in whatever cluster; five at
	// most.
	Sharing []string `json:"sharing,omitempty" brief:"5,120"`
	// OldestTransaction is what holds vacuum back for longest, as far as the login may see it. nil
	// until it was read once.
	OldestTransaction *OldestTransaction `json:"oldestTransaction,omitempty"`
	// InFlight is claimed and not yet written back.
	InFlight InFlight `json:"inFlight"`
	// DeliveredPerSecond is how many events the process has marked as delivered in a second, over the last 15 seconds.
	DeliveredPerSecond float64 `json:"deliveredPerSecond,omitempty"`
	// Hour is the last hour by minute, nil in the first minute of a process.
	Hour *Hour `json:"hour,omitempty" brief:"-"`
	// Backlog is nil until it was counted once, and keeps the last count while the database is unreachable.
	Backlog *Backlog `json:"backlog,omitempty"`
	// Retention is nil until it was read once, and keeps the last value while the database is unreachable.
	Retention *Retention `json:"retention,omitempty"`
	// Notifications are nil for a dispatcher without notify.
	Notifications *Notifications `json:"notifications,omitempty" brief:"-"`
	// Replay is the progress of a replay, discard or reopen; only the process that runs one has it. Such a process reports
	// Name, Namespace, Version, State, StartedAt, Source and Schema too, and a Sink that is Unknown. nil until its dead letters
	// are chosen.
	Replay *Replay `json:"replay,omitempty"`
	// Data is nil until it was observed once, and keeps the last observation while the database is unreachable.
	Data *Data `json:"data,omitempty"`
	// Journal is nil while the journal is off, and until it was compared once.
	Journal *Journal `json:"journal,omitempty"`
	// FileProblems are files that are read again while the process runs, and are invalid now: their last valid
	// content stays in use. The first FileProblemsListed.
	FileProblems []FileProblem `json:"fileProblems,omitempty" brief:"3,200"`
	// EventTypes are the types of the events that the process has claimed, by name, at most EventTypesListed.
	EventTypes []EventType `json:"eventTypes,omitempty" brief:"64"`
	// LastError is the newest failed delivery.
	LastError *Error `json:"lastError,omitempty" brief:"-"`
}

// EventTypesListed is the most event types in a Status, and EventTypeBytes the longest of a brief one.
const (
	EventTypesListed = 64
	EventTypeBytes   = 100
)

// EventType is a type of events that were claimed.
type EventType struct {
	// type is the event type.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=100
	Type string `json:"type" brief:"100"`

	// lastSeen is the day on which the last one was claimed, in UTC.
	// +required
	LastSeen Time `json:"lastSeen"`
}

// LinkState is the state of a connection.
type LinkState string

// The states. Refusing is for a sink that responds, and refused all of the last deliveries; and for a database that
// responds, and refuses to lease some events, or their outcomes.
const (
	Unknown     LinkState = "Unknown"
	Reachable   LinkState = "Reachable"
	Unreachable LinkState = "Unreachable"
	Refusing    LinkState = "Refusing"
)

// Reasons of a [Link] that are not about its connection.
const (
	// OutcomesRefused: the database responds, and refuses the outcomes of some events.
	OutcomesRefused = "OutcomesRefused"
	// ClaimsRefused: the database responds, and refuses to lease some events. With Link.Stopped it lets none be leased.
	ClaimsRefused = "ClaimsRefused"
	// CallsStuck: every call of the sink is stuck, or their events leave no room for others.
	CallsStuck = "CallsStuck"
)

// Link is a connection to the database or the destination.
type Link struct {
	State LinkState `json:"state"`
	// Reason is one word for the cause, such as ConnectionFailed, AuthenticationFailed,
	// CertificateInvalid. Empty when reachable.
	Reason string `json:"reason,omitempty"`
	// Message is a sentence with the cause and the remedy. Empty when reachable.
	Message string    `json:"message,omitempty" brief:"400"`
	Since   time.Time `json:"since,omitzero"`
	// Stopped is true of a database that responds, and refuses to lease any event, or connections: nothing is delivered.
	Stopped bool `json:"stopped,omitempty"`
	// EventID is the event that the database refused to lease last.
	EventID string `json:"eventID,omitempty" brief:"-"`
}

// StuckCall is a call of the sink that does not return.
type StuckCall struct {
	Topic string `json:"topic"`
	// EventID is the first event of the call, and Events their number.
	EventID string    `json:"eventID"`
	Events  int       `json:"events"`
	Since   time.Time `json:"since"`
}

// PausedTopic is a topic whose destination fails while others' do not. Its state is Unreachable or
// Refusing.
type PausedTopic struct {
	Topic string `json:"topic" brief:"100"`
	Link
}

// GatedTopic is a topic that is paused for the type of its next event.
type GatedTopic struct {
	Topic string `json:"topic" brief:"60"`
	// EventType is that type, which may be empty.
	EventType string `json:"eventType" brief:"60"`
	// Waiting counts the topic's events that are due, as Backlog does; absent until they were counted.
	Waiting int64 `json:"waiting,omitempty"`
	// Since is when the process first paused the topic.
	Since time.Time `json:"since"`
}

// TopicLimitsListed is the most entries of [Status.TopicLimits].
const TopicLimitsListed = 8

// TopicLimit is what limits a topic.
type TopicLimit struct {
	Topic string `json:"topic" brief:"60"`
	// LimitedBy is one of those of Status, without Idle.
	LimitedBy string `json:"limitedBy"`
	// Concurrency is how many calls of the sink the topic may have at once in this process.
	Concurrency int `json:"concurrency"`
}

// OldestTransaction is something that keeps vacuum from removing rows that are gone: then claims grow
// slower, and the table larger.
type OldestTransaction struct {
	// Kind is one of the kinds below, empty for nothing.
	Kind TransactionKind `json:"kind,omitempty"`
	// Name is the pid and the application name of a session, as "pid 4711 (psql)"; the gid of a
	// prepared transaction; or the name of a slot or a standby.
	Name string `json:"name,omitempty" brief:"200"`
	// Since is when it began, on the database's clock.
	Since time.Time `json:"since,omitzero"`
	// Seconds is its age when it was looked at.
	Seconds float64 `json:"seconds,omitempty"`
}

// TransactionKind is what holds vacuum back.
type TransactionKind string

// Values of [TransactionKind].
const (
	Session             TransactionKind = "Session"
	PreparedTransaction TransactionKind = "PreparedTransaction"
	ReplicationSlot     TransactionKind = "ReplicationSlot"
	Standby             TransactionKind = "Standby"
)

// Schema is the state of the outbox schema.
type Schema struct {
	// State is Ready, Missing, TooOld, TooNew, Differs, SequencesBehind or Unknown.
	State    string `json:"state"`
	Version  int    `json:"version"`
	Required int    `json:"required"`
	Message  string `json:"message,omitempty" brief:"400"`
}

// InFlight is claimed and not yet written back.
type InFlight struct {
	Rows  int   `json:"rows"`
	Bytes int64 `json:"bytes"`
}

// Backlog is the whole outbox as this dispatcher's topics see it, not this process's share.
type Backlog struct {
	// ObservedAt is the database's time of the count.
	ObservedAt time.Time `json:"observedAt"`
	Counts
	// Topics has one entry per topic.
	Topics []TopicCounts `json:"topics,omitempty" brief:"-"`
	// BlockedKeys counts the keys that wait behind a dead event, with onDead Block; Blocked lists the
	// first 20 of them.
	BlockedKeys int64        `json:"blockedKeys,omitempty"`
	Blocked     []BlockedKey `json:"blocked,omitempty" brief:"-"`
	// DeadGroups are the groups of unresolved dead events, the largest first; 20 at most. Their reasons are those of
	// CONTRACT C-90, such as permanent_failure.
	DeadGroups []DeadGroupExample `json:"deadGroups,omitempty" brief:"20"`
}

// DeadGroupsListed is the most entries of [Backlog.DeadGroups].
const DeadGroupsListed = 20

// DeadGroup counts unresolved dead rows that have the same topic, reason and cause.
type DeadGroup struct {
	// group identifies the group, by 8 hex digits. Commands that read, replay or
	// discard dead letters accept it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	Group string `json:"group"`

	// topic is the events' topic.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Topic string `json:"topic,omitempty" brief:"100"`

	// reason is why the events are dead: MaxRetriesExceeded, PoisonMessage,
	// SchemaValidationFailed, ProcessingTimeout or PermanentFailure.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty" brief:"24"`

	// class is what failed, in one word: the kind of the sink, schema, rule, route,
	// mask, message, decode, handler or lease.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Class string `json:"class,omitempty" brief:"24"`

	// code is the destination's own code, or the name of the rule, such as 422.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Code string `json:"code,omitempty" brief:"60"`

	// place is the place in the event, such as /items/*/price.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Place string `json:"place,omitempty" brief:"60"`

	// count is the number of events.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Count int64 `json:"count"`

	// estimated is true when count is an estimate.
	// +optional
	Estimated bool `json:"estimated,omitempty"`

	// since is when the first of them became dead.
	// +optional
	Since Time `json:"since,omitzero"`

	// last is when the last of them became dead.
	// +optional
	Last Time `json:"last,omitzero"`
}

// DeadGroupExample is a group with one of its events.
type DeadGroupExample struct {
	DeadGroup
	// Sample is the id of the event that became dead last, and Error its error.
	Sample string `json:"sample,omitempty" brief:"-"`
	Error  string `json:"error,omitempty" brief:"-"`
}

// BlockedKey is a key that waits for a person to replay or discard its dead event.
type BlockedKey struct {
	Topic   string    `json:"topic"`
	Key     string    `json:"key"`
	EventID string    `json:"eventID"`
	DeadAt  time.Time `json:"deadAt"`
}

// Counts are numbers of rows (CONTRACT C-96).
type Counts struct {
	// pending is the number of rows that wait: due now, or for a retry. Above 10000 it is an estimate.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Pending int64 `json:"pending"`

	// scheduled is the number of rows that their producers delayed, and that were never due.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Scheduled int64 `json:"scheduled"`

	// retrying is the number of pending rows that wait for a retry.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Retrying int64 `json:"retrying"`

	// processing is the number of rows that dispatchers have claimed.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Processing int64 `json:"processing"`

	// dead is the number of unresolved dead rows.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Dead int64 `json:"dead"`

	// estimated is true when one of the counts is an estimate.
	// +optional
	Estimated bool `json:"estimated,omitempty"`

	// oldestPending is when the row that has waited for longest was due first: pending, waiting for a retry or leased.
	// +optional
	OldestPending Time `json:"oldestPending,omitzero"`
}

// TopicCounts are the counts of one topic.
type TopicCounts struct {
	Topic string `json:"topic"`
	Counts
}

// FileProblemsListed is the most entries of [Status.FileProblems].
const FileProblemsListed = 20

// FileProblem is a file that cannot be used as it is now.
type FileProblem struct {
	// Field is the field of the configuration that names the file.
	Field string `json:"field" brief:"100"`
	// Message is a sentence with the cause and the remedy.
	Message string    `json:"message" brief:"400"`
	Since   time.Time `json:"since"`
}

// Error is a failure and when it was seen.
type Error struct {
	At      time.Time `json:"at"`
	Message string    `json:"message"`
}

// Minutes is the most minutes of an [Hour].
const Minutes = 60

// Hour is the last hour that a process ran, in one number for each minute, the newest last.
type Hour struct {
	// Until is the end of the newest minute.
	Until Time `json:"until"`
	// Pending are the events of the whole outbox that waited at the end of each minute, now or for a retry: -1 where they were
	// not counted. Delivered are those that the process delivered in each.
	Pending   []int64 `json:"pending"`
	Delivered []int64 `json:"delivered"`
}
