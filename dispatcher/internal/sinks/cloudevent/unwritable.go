package cloudevent

import (
	"fmt"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// Unwritable is the error for an event that no message of the sink can be made of. No attempt can, so the
// event is dead at once.
func Unwritable(sink string, e *dispatcher.Event, err error) error {
	return reason.Coded(reason.Unwritable, dispatcher.Permanent(dispatcher.ReasonPermanentFailure,
		fmt.Errorf("%s: event %s cannot be written as a CloudEvent: %w; correct the row", sink, e.ID, err)))
}
