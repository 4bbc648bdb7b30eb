package engine

import (
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// faults remembers the last failed delivery of events that may not be at fault themselves: the destination
// reported a fault of its own, or gave one response for several events. It is a hint, bounded, and lost with the
// process. It belongs to a flight, whose lock guards it.
type faults map[uuid.UUID]fault

// fault is a failed delivery of an event.
type fault struct {
	at time.Time
	// maxBatch is how many events the next one may have; 0 is any number.
	maxBatch int
}

const (
	// mostFaults bounds the events that are remembered. Beyond it all are forgotten, and their next failure is
	// judged like a first one.
	mostFaults = 10_000
	// faultParts is into how many parts a call is divided of which nothing was delivered, when its events come
	// again: one event may have failed the others. Of a hundred it is alone in its third call.
	faultParts = 8
)

// newFault is the failure of a call with these results, which ended now.
func newFault(errs []error, now time.Time) fault {
	for _, err := range errs {
		if err == nil {
			return fault{at: now}
		}
	}
	return fault{at: now, maxBatch: max(1, len(errs)/faultParts)}
}

// alone reports whether an event of a call with so many has a result of its own.
func (f fault) alone(events int) bool { return events == 1 || f.maxBatch == 0 }

// since is the time after which others were delivered if an event's own fault is to be seen: its claim, or its
// last failure before that.
func (f fault) since(claimed time.Time) time.Time {
	if !f.at.IsZero() && f.at.Before(claimed) {
		return f.at
	}
	return claimed
}

// note records the result of an event, and returns its last failure before this one, if that is known.
func (f faults) note(id uuid.UUID, err error, last fault) (before fault) {
	before = f[id]
	switch _, permanent := dispatcher.PermanentReason(err); {
	case err == nil, permanent, dispatcher.IsUnavailable(err):
		delete(f, id)
	default:
		if len(f) >= mostFaults {
			clear(f)
		}
		f[id] = last
	}
	return before
}
