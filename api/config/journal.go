package config

import "time"

// Journal says whether each change of an event's row is recorded (CONTRACT C-61). `dispatcher migrate up` applies it to
// the database; dispatchers need not know.
type Journal struct {
	// Mode is Enabled or Disabled. What was recorded is kept for its retention also when it is Disabled. Required.
	Mode JournalMode `json:"mode"`
	// Retention is how long a record is kept at least, 24h to 87600h (10 years). Whole days are removed. Defaults to
	// 168h.
	Retention Duration `json:"retention,omitempty"`
}

// JournalMode says whether changes are recorded.
type JournalMode string

// The modes.
const (
	JournalEnabled  JournalMode = "Enabled"
	JournalDisabled JournalMode = "Disabled"
)

// DefaultJournalRetention is the default of [Journal.Retention].
const DefaultJournalRetention = 7 * 24 * time.Hour

func (j *Journal) applyDefaults() {
	if j != nil {
		setDefault(&j.Retention, Duration(DefaultJournalRetention))
	}
}

func (j *Journal) validate(p *problems) {
	if j == nil {
		return
	}
	p.oneOf("journal.mode", string(j.Mode), string(JournalEnabled), string(JournalDisabled))
	p.duration("journal.retention", j.Retention, 24*time.Hour, longestRetention)
}
