package consumer

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrInvalid is the error of a consumer, an event or a policy that cannot be used as it is.
	ErrInvalid = errors.New("invalid")
	// ErrBusy says that another delivery of the event was still being handled when Options.Wait ended. Its outcome is not
	// known yet: let the message come again.
	ErrBusy = errors.New("another delivery of the event is being handled; let the message come again")
	// ErrOlderToken says that a later delivery of the event is known, so this one is not handled. Only with Options.Fence.
	ErrOlderToken = errors.New("a later delivery of the event is known, with a higher fencing token; this one is given up, and needs nothing done")
)

// Refused is a failure that lies in the event itself: no later delivery of it as it is can succeed.
type Refused struct{ err error }

// Error implements error.
func (r *Refused) Error() string { return r.err.Error() }

// Unwrap returns the error that was refused.
func (r *Refused) Unwrap() error { return r.err }

// Refuse marks err as the event's own failure. [Consumer.HTTP] responds with 422, which the dispatcher counts against this event
// and never against the destination. The error is nil when err is.
func Refuse(err error) error {
	if err == nil {
		return nil
	}
	return &Refused{err}
}

// pause is a failure that names when to try again.
type pause struct {
	error
	after time.Duration
}

func (p *pause) Unwrap() error { return p.error }

// RetryAfter requests the next delivery no sooner than after d: [Consumer.HTTP] responds with 503 with Retry-After, which the
// dispatcher keeps up to an hour. The error is nil when err is.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &pause{err, d}
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
}
