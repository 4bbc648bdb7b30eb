package spec

import "time"

// Retention says how long rows are kept. The dispatchers remove them, one pod at a time. The interval between runs is a
// 24th of the shortest retention, from one minute to 6 hours.
type Retention struct {
	// delivered is how long a delivered row is kept, and its dedupe key is remembered.
	// With 0s a row is deleted when it is delivered. From 0s to 87600h (10 years).
	// Defaults to 168h.
	// +optional
	// +kubebuilder:default="168h"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) <= duration('87600h')",message="delivered must be a duration from 0s, which deletes a row as soon as it is delivered, to 87600h, such as 168h for 7 days"
	Delivered *Duration `json:"delivered,omitempty"`

	// deadResolved is how long a dead row and its dead letters are kept after a person
	// has resolved the last of these. From 1h to 87600h. Defaults to 720h.
	// +optional
	// +kubebuilder:default="720h"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1h') && duration(self) <= duration('87600h')",message="deadResolved must be a duration from 1h to 87600h, such as 720h for 30 days"
	DeadResolved Duration `json:"deadResolved,omitzero"`

	// deadUnresolved is how long an unresolved dead row is kept. After that its
	// dead letter is resolved as expired, and kept for deadResolved. With onDead Block
	// a row that has a key is kept anyway, because only a person unblocks a key. From
	// 1h to 87600h. When not set: for ever.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1h') && duration(self) <= duration('87600h')",message="deadUnresolved must be a duration from 1h to 87600h, such as 2160h for 90 days; leave it out to keep unresolved rows for ever"
	DeadUnresolved Duration `json:"deadUnresolved,omitzero"`

	// Scope says whose rows are removed: those of a dispatcher that has a database of its own, else the Outbox's.
	Scope RetentionScope `json:"-"`
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
