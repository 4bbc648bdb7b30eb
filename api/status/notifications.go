package status

import (
	"time"
)

// Notifications counts the notifications of dead letters to the address of notify.
type Notifications struct {
	// Waiting counts the notifications still to be sent, by any process: 10,001 for more than 10,000. Oldest is when the
	// first of them became dead.
	Waiting int64      `json:"waiting"`
	Oldest  *time.Time `json:"oldest,omitempty"`
	// Sent, Failed and GivenUp count this process's notifications that were accepted, its failed attempts, and the
	// notifications that were not accepted within a day.
	Sent    int64 `json:"sent"`
	Failed  int64 `json:"failed"`
	GivenUp int64 `json:"givenUp"`
	// Message says why the last ones of this process failed; empty when they did not.
	Message string `json:"message,omitempty"`
}

// Retention is what the sweep that removes rows after their retention has done, in whatever process: all that
// share it say the same.
type Retention struct {
	// Running is true while a run is under way. Position is the page of the events' table that is next, of Pages.
	Running  bool  `json:"running,omitempty" brief:"-"`
	Position int64 `json:"position,omitempty" brief:"-"`
	Pages    int64 `json:"pages,omitempty" brief:"-"`
	RetentionTotals
	// Seconds is how long the last whole run took, and DeadLetters how many dead letters were removed, ever.
	Seconds     float64 `json:"seconds,omitempty" brief:"-"`
	DeadLetters int64   `json:"deadLetters"`
	// Message is why this process's last look or run failed, and the remedy. Empty when it did not.
	Message string `json:"message,omitempty" brief:"-"`
}

// RetentionTotals is what was removed, as of the end of the last run.
type RetentionTotals struct {
	// lastRun is when the last complete run ended, on the database's clock. While runs
	// remove nothing it may be ten minutes old.
	// +optional
	LastRun Time `json:"lastRun,omitzero"`

	// nextRun is when the run after lastRun is due.
	// +optional
	NextRun Time `json:"nextRun,omitzero"`

	// delivered is the total of delivered rows that were removed. It does not include
	// rows that were deleted on delivery.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Delivered int64 `json:"delivered"`

	// dead is the total of dead rows that were removed after they were resolved or had
	// expired.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Dead int64 `json:"dead"`

	// expired is the total of unresolved dead letters that deadUnresolved resolved.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Expired int64 `json:"expired"`
}

// Data is the health of the outbox's rows. Windows is the same in each process of a dispatcher, and orphaned rows are the
// same in each dispatcher of a database.
type Data struct {
	// ObservedAt is the database's time of the observation.
	ObservedAt time.Time `json:"observedAt"`
	// Windows are how deliveries of the dispatcher ended in the last 5 minutes, and in the last hour.
	Windows []Window `json:"windows" brief:"4"`
	// Unserved counts due rows of topics that no dispatcher serves, and Abandoned rows that are leased to a worker that
	// does not run any more: in all namespaces of the database, for at least a minute.
	Unserved  int64 `json:"unserved"`
	Abandoned int64 `json:"abandoned"`
	// OrphansAtLeast is true when there may be more of them.
	OrphansAtLeast bool `json:"orphansAtLeast,omitempty"`
	// OrphanTopics are the topics that have such rows, at most 20: those of the dispatcher's namespace first, and by name.
	OrphanTopics []OrphanTopic `json:"orphanTopics,omitempty" brief:"5"`
	// Adoptions are the rows of adopted tables that have no event, of the dispatcher's namespace, by adoption and state.
	Adoptions []AdoptedRows `json:"adoptions,omitempty" brief:"4"`
}

// AdoptedRows are rows of a table that is adopted which have no event.
type AdoptedRows struct {
	Adoption string `json:"adoption" brief:"48"`
	// State is refused (by the outbox), missing (without a note), waiting (open in their table) or uncounted.
	State string `json:"state" brief:"9"`
	// Rows is -1 where they are uncounted.
	Rows int64 `json:"rows"`
}

// Window counts how deliveries ended in a time up to now.
type Window struct {
	// Window is that time, as 5m or 1h.
	Window string `json:"window"`
	// Delivered events were marked so by a process that still runs, and Failed are its attempts that failed.
	Delivered int64 `json:"delivered"`
	Failed    int64 `json:"failed"`
	// SuccessRate is the part of the attempts that succeeded, from 0 to 1. Absent when there was none.
	SuccessRate *float64 `json:"successRate,omitempty"`
	// Dead counts the events that became dead. DeadAtLeast is true when there may be more.
	Dead        int64 `json:"dead"`
	DeadAtLeast bool  `json:"deadAtLeast,omitempty"`
}

// OrphanTopic is a topic with orphaned rows.
type OrphanTopic struct {
	Namespace string `json:"namespace" brief:"48"`
	Topic     string `json:"topic" brief:"48"`
	Unserved  int64  `json:"unserved"`
	Abandoned int64  `json:"abandoned"`
}

// Journal is what was found when the journal of the last day was compared with the rows, a part with each look.
type Journal struct {
	// ObservedAt is the database's time of the newest look, and Records is how many records it read.
	ObservedAt time.Time `json:"observedAt"`
	Records    int64     `json:"records,omitempty" brief:"-"`
	// Differences counts what the last whole pass found, or the pass under way when it has found more. Examples are sentences about
	// the first of them.
	Differences int64    `json:"differences"`
	Examples    []string `json:"examples,omitempty" brief:"-"`
}

// Time is a time in seconds since 1970, as an object of Kubernetes holds it. Its JSON is a text of RFC 3339 in UTC. 0 means none.
//
// +kubebuilder:validation:Type=string
// +kubebuilder:validation:Format=date-time
type Time int64

// At is the second of a time, 0 for the zero time.
func At(t time.Time) Time {
	if t.IsZero() {
		return 0
	}
	return Time(t.Unix())
}

// IsZero reports whether it is 0.
func (t Time) IsZero() bool { return t == 0 }

// Time is the time in UTC, the zero time for 0.
func (t Time) Time() time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.Unix(int64(t), 0).UTC()
}

// MarshalJSON writes the text. It fails for a year above 9999.
func (t Time) MarshalJSON() ([]byte, error) { return t.Time().MarshalJSON() }

// UnmarshalJSON reads any text of RFC 3339, and fails for others.
func (t *Time) UnmarshalJSON(text []byte) error {
	var exact time.Time
	err := exact.UnmarshalJSON(text)
	*t = At(exact)
	return err
}
