package status

import "time"

// Retention is what the sweep that removes rows after their retention has done, in whatever process: all that
// share it say the same.
type Retention struct {
	// Running is true while a run is under way. Position is the page of the events' table that is next, of Pages.
	Running  bool  `json:"running,omitempty" brief:"-"`
	Position int64 `json:"position,omitempty" brief:"-"`
	Pages    int64 `json:"pages,omitempty" brief:"-"`
	// LastRun is when the last whole run ended, on the database's clock, and Seconds how long it took. NextRun is
	// when the next is due.
	LastRun *time.Time `json:"lastRun,omitempty"`
	Seconds float64    `json:"seconds,omitempty" brief:"-"`
	NextRun *time.Time `json:"nextRun,omitempty"`
	// Removed counts what was removed, ever.
	Removed Removed `json:"removed"`
	// Message is why this process's last look or run failed, and the remedy. Empty when it did not.
	Message string `json:"message,omitempty" brief:"-"`
}

// Removed are numbers of rows that retention has removed.
type Removed struct {
	// Delivered counts delivered rows, Dead dead rows that are resolved or expired, and DeadLetters dead letters.
	Delivered   int64 `json:"delivered"`
	Dead        int64 `json:"dead"`
	DeadLetters int64 `json:"deadLetters"`
	// Expired counts dead letters that retention resolved, because no person did (deadUnresolved).
	Expired int64 `json:"expired"`
}
