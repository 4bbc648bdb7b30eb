package status

import "time"

// Adoptions is what `dispatcher adopt apply` leaves in its termination message.
type Adoptions struct {
	Adoptions []Adoption `json:"adoptions"`
}

// Adoption is how far an adoption is.
type Adoption struct {
	Name string `json:"name"`
	// Phase is Shadow, Cutover, Returning (events in delivery are waited for) or Back (the database has none of the name).
	Phase string `json:"phase"`
	// Since is when the shadow began, on the database's clock.
	Since time.Time `json:"since,omitzero"`
	// Theirs counts the rows of the service's table since then, Ours the events of them, Missing the rows without an event
	// and without a reason, Extra the events without a row, and Refused the rows of which no event can be made.
	Theirs  int64 `json:"theirs"`
	Ours    int64 `json:"ours"`
	Missing int64 `json:"missing"`
	Extra   int64 `json:"extra"`
	Refused int64 `json:"refused"`
}
