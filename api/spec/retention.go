package spec

import "time"

// Retention says how long rows are kept (CONTRACT C-60). A row is removed by a sweep that runs every 24th of the
// shortest of the times, from once a minute to once in 6 hours, by one process at a time.
//
// +kubebuilder:object:generate=false
type Retention struct {
	// Delivered is how long a delivered row is kept, and its dedupe key remembered, 0s to 87600h (10 years).
	// With 0s a row is deleted when it is delivered. Defaults to 168h.
	Delivered *Duration `json:"delivered,omitempty"`
	// DeadResolved is how long a dead row is kept after a person resolved the last of its dead letters,
	// with all of these, 1h to 87600h. Defaults to 720h.
	DeadResolved Duration `json:"deadResolved,omitempty"`
	// DeadUnresolved is how long an unresolved dead row is kept, 1h to 87600h. After that its dead letter is resolved
	// as expired, and kept for DeadResolved. With OnDead Block a row that has a key is kept anyway, because only
	// a person unblocks a key. Defaults to for ever.
	DeadUnresolved Duration `json:"deadUnresolved,omitempty"`
	// Scope is Dispatcher or Outbox: whose rows are removed. Dispatcher is those of the namespace and the topics;
	// dispatchers that share topics then all remove them, so the shorter time holds. Outbox is all of the
	// tables, for dispatchers that all say the same, as those of one Outbox do. Defaults to Dispatcher.
	Scope RetentionScope `json:"scope,omitempty"`
}

// RetentionScope says whose rows a retention is about.
type RetentionScope string

// Values of [RetentionScope].
const (
	ScopeDispatcher RetentionScope = "Dispatcher"
	ScopeOutbox     RetentionScope = "Outbox"
)

// The defaults of a [Retention].
const (
	DefaultDelivered    = 7 * 24 * time.Hour
	DefaultDeadResolved = 30 * 24 * time.Hour
)

// DeletesAtAck reports whether rows are deleted as soon as they are delivered.
func (r Retention) DeletesAtAck() bool { return r.Delivered != nil && *r.Delivered == 0 }

func (r *Retention) applyDefaults() {
	if r.Delivered == nil {
		delivered := Duration(DefaultDelivered)
		r.Delivered = &delivered
	}
	setDefault(&r.DeadResolved, Duration(DefaultDeadResolved))
	setDefault(&r.Scope, ScopeDispatcher)
}

// Journal says whether changes of events are recorded. A record has the status before and after, the attempt, the
// lease, the worker and the login, the transaction and the position in the database's WAL; never a payload.
type Journal struct {
	// mode is Enabled or Disabled. Enabled, an event writes about twice as much WAL.
	// Disabled, existing records are kept for retention.
	// +required
	Mode JournalMode `json:"mode,omitempty"`

	// retention is the least time that a record is kept; records are removed by the
	// day. From 24h to 87600h. Defaults to 168h.
	// +optional
	// +kubebuilder:default="168h"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('24h') && duration(self) <= duration('87600h')",message="retention must be a duration from 24h to 87600h, such as 168h for 7 days"
	Retention Duration `json:"retention,omitzero"`
}

// JournalMode says whether changes are recorded.
// +kubebuilder:validation:Enum=Enabled;Disabled
type JournalMode string

const (
	// JournalEnabled records each change.
	JournalEnabled JournalMode = "Enabled"
	// JournalDisabled records none.
	JournalDisabled JournalMode = "Disabled"
)

// DefaultJournalRetention is the default of [Journal.Retention].
const DefaultJournalRetention = 7 * 24 * time.Hour

func (j *Journal) applyDefaults() {
	if j != nil {
		setDefault(&j.Retention, Duration(DefaultJournalRetention))
	}
}
