package config

import "time"

// Journal says whether each change of an event's row is recorded (CONTRACT C-61). `dispatcher migrate up` applies it to
// the database; dispatchers need not know.
type Journal struct {
	// Enabled turns the journal on or off. What was recorded is kept for its retention also when it is turned off.
	// Required.
	Enabled *bool `json:"enabled"`
	// Retention is how long a record is kept at least, 24h to 87600h (10 years). Whole days are removed. Defaults to
	// 168h.
	Retention Duration `json:"retention,omitempty"`
}

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
	p.when(j.Enabled == nil, "journal.enabled", "is missing; set it to true or false, or remove journal to leave the database's as it is")
	p.duration("journal.retention", j.Retention, 24*time.Hour, longestRetention)
}
