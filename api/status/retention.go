package status

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
