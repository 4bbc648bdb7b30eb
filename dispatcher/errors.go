package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// DeadReason says why a row is dead. The values are those of the dead_reason column and of the
// metrics' reason label (CONTRACT C-40).
type DeadReason string

// The reasons a row can be dead for.
const (
	// ReasonMaxRetriesExceeded: the last allowed attempt failed.
	ReasonMaxRetriesExceeded DeadReason = "max_retries_exceeded"
	// ReasonPoisonMessage: the event made its handler panic until no attempt was left.
	ReasonPoisonMessage DeadReason = "poison_message"
	// ReasonSchemaValidationFailed: the payload breaks its schema or a business rule.
	ReasonSchemaValidationFailed DeadReason = "schema_validation_failed"
	// ReasonProcessingTimeout: the lease of the last allowed attempt expired without an outcome.
	ReasonProcessingTimeout DeadReason = "processing_timeout"
	// ReasonPermanentFailure: the destination refused the event for good.
	ReasonPermanentFailure DeadReason = "permanent_failure"
)

// ErrNoHandler is returned by [Handlers] for an event whose topic has no handler. It is a failed
// delivery like any other: retried, not lost (CONTRACT C-29).
var ErrNoHandler = errors.New("no handler for the topic")

// A sink says what a failed delivery means by wrapping its error. An error that is not wrapped is
// the row's own failure: it spends an attempt and is retried by the backoff policy.

// Unavailable marks err as the destination's failure as a whole: it could not be reached, or refuses every
// login. The row goes back with its attempt, and claiming pauses until a probe succeeds; while others of its
// topic are delivered, that row alone waits (CONTRACT C-32).
func Unavailable(err error) error { return &unavailableError{err} }

// IsUnavailable reports whether err, or one it wraps, was made by [Unavailable].
func IsUnavailable(err error) bool {
	var u *unavailableError
	return errors.As(err, &u)
}

// Refused marks an error of a [Store] that is about the rows it was given, and not about the database: a
// trigger, a check or a missing right refuses them. Given fewer rows, the store may take them (CONTRACT
// C-33).
func Refused(err error) error { return &refusedError{err} }

// IsRefused reports whether err, or one it wraps, was made by [Refused].
func IsRefused(err error) bool {
	var r *refusedError
	return errors.As(err, &r)
}

// RefusedRow is the error of a claim of one row, which the database refuses to lease. [IsRefused] is true of it.
type RefusedRow struct {
	ID    uuid.UUID
	Topic string
	// Err is the database's, made by [Refused].
	Err error
}

// Error names the event, its topic and the cause.
func (r *RefusedRow) Error() string {
	return fmt.Sprintf("event %s of topic %q: %v", r.ID, r.Topic, r.Err)
}

// Unwrap returns the database's error.
func (r *RefusedRow) Unwrap() error { return r.Err }

// IsTooSlow reports whether err, or one it wraps, says that a statement took too long: the client's deadline, or
// PostgreSQL's statement_timeout, transaction_timeout or lock_timeout, which an administrator may set for a login. It
// says nothing of the database: given fewer rows, the statement may succeed (CONTRACT C-35).
func IsTooSlow(err error) bool {
	var server interface{ SQLState() string }
	if errors.As(err, &server) {
		switch server.SQLState() {
		case "57014", "25P04", "55P03":
			return true
		}
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// DestinationFault marks err as a fault that the destination reports of itself rather than of the event, such
// as 503 from a gateway, or any other 5xx. The attempt is given back, so that no such outage makes an event dead:
// for a day from the event's first fault since something of its topic was delivered, and for a week while nothing is
// delivered at all. It is the row's own failure where others of the topic were delivered since it was claimed, or since
// it failed before that
// (CONTRACT C-32). Where one call has several events and delivers none, they come again in smaller calls, and
// none of them is charged (CONTRACT C-33).
func DestinationFault(err error) error { return &destinationFault{err} }

// IsDestinationFault reports whether err, or one it wraps, was made by [DestinationFault].
func IsDestinationFault(err error) bool {
	var f *destinationFault
	return errors.As(err, &f)
}

// Unanswered marks err as the end of a connection that was kept from an earlier event, without one byte of a response: this says
// nothing of the event, which may have arrived. The attempt is given back, and the event is claimed again at once. That is so for the
// first fault of an event (see [Event].FaultSince); another one is the row's own failure.
func Unanswered(err error) error { return &unansweredError{err} }

// IsUnanswered reports whether err, or one it wraps, was made by [Unanswered].
func IsUnanswered(err error) bool {
	var u *unansweredError
	return errors.As(err, &u)
}

// Permanent marks err as final: the row becomes dead with the reason at once, whatever attempts
// are left. The error wraps err, and is never nil.
func Permanent(reason DeadReason, err error) error { return &permanentError{reason, err} }

// PermanentReason returns the reason of an error made by [Permanent], and whether err is one.
func PermanentReason(err error) (DeadReason, bool) {
	var p *permanentError
	if errors.As(err, &p) {
		return p.reason, true
	}
	return "", false
}

// RetryAfter marks err as a failure after which the destination requested a pause of at least d.
// It spends an attempt; the row is retried after d or the backoff policy's delay, whichever is longer.
// The error wraps err, and is never nil.
func RetryAfter(d time.Duration, err error) error { return &retryAfterError{d, err} }

// RetryAfterDelay returns the delay of an error made by [RetryAfter], or 0.
func RetryAfterDelay(err error) time.Duration {
	var r *retryAfterError
	if errors.As(err, &r) {
		return r.delay
	}
	return 0
}

type unavailableError struct{ err error }

func (e *unavailableError) Error() string { return e.err.Error() }
func (e *unavailableError) Unwrap() error { return e.err }

type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

type destinationFault struct{ err error }

func (e *destinationFault) Error() string { return e.err.Error() }
func (e *destinationFault) Unwrap() error { return e.err }

type unansweredError struct{ err error }

func (e *unansweredError) Error() string { return e.err.Error() }
func (e *unansweredError) Unwrap() error { return e.err }

type permanentError struct {
	reason DeadReason
	err    error
}

func (e *permanentError) Error() string { return fmt.Sprintf("%s: %v", e.reason, e.err) }
func (e *permanentError) Unwrap() error { return e.err }

type retryAfterError struct {
	delay time.Duration
	err   error
}

func (e *retryAfterError) Error() string { return e.err.Error() }
func (e *retryAfterError) Unwrap() error { return e.err }
