package status

import "time"

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
