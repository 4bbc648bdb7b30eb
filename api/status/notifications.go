package status

import "time"

// Notifications are what the address of deadLetters.notify is told of deaths.
type Notifications struct {
	// Waiting are deaths that it is still to be told of, whichever process does: 10,001 for more than 10,000. Oldest is
	// the time of the first of them.
	Waiting int64      `json:"waiting"`
	Oldest  *time.Time `json:"oldest,omitempty"`
	// Sent, Failed and GivenUp count what this process sent, attempts of it that failed, and what was not taken
	// within a day of the death.
	Sent    int64 `json:"sent"`
	Failed  int64 `json:"failed"`
	GivenUp int64 `json:"givenUp"`
	// Message says why the last ones of this process failed; empty when they did not.
	Message string `json:"message,omitempty"`
}
