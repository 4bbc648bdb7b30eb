package dispatcher

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
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

// Cause says what failed, in words that events share: it groups failures, and holds no value of an event.
type Cause struct {
	// Class is what failed, in one lower-case word: the kind of the sink ("http", "kafka"), or one of the
	// classes below.
	Class string `json:"class,omitempty"`
	// Code is the destination's own code ("422", "MESSAGE_TOO_LARGE"), or the name of the rule. Empty for none.
	Code string `json:"code,omitempty"`
	// Place is where in the event, with * for the index of an array: "/items/*/price". Empty for none.
	Place string `json:"place,omitempty"`
}

// The classes of what is not a sink.
const (
	ClassSchema  = "schema"  // the JSON Schema of the event's type; the code is the keyword
	ClassRule    = "rule"    // a business rule; the code is its name
	ClassRoute   = "route"   // the routes have no place for the event
	ClassMask    = "mask"    // a field that is to be removed or masked is in the way
	ClassMessage = "message" // a header of the message cannot be computed; the code is the field
	ClassDecode  = "decode"  // the row cannot be read
	ClassHandler = "handler" // a handler, or a sink that says nothing of its failures
	ClassLease   = "lease"   // the lease of the last attempt ended without an outcome
)

// Codes that are not a destination's own.
const (
	CodeTimeout   = "Timeout"   // the time of the delivery was over
	CodePanic     = "Panic"     // the sink or the handler panicked
	CodeNoHandler = "NoHandler" // the topic has no handler
)

// The most bytes of a cause's parts: what is longer is cut.
const (
	maxClass = 32
	maxCode  = 100
	maxPlace = 200
)

// WithCause says what caused err, as far as it is known here: what a cause further inside says, counts first. A
// sink names its kind as the class of all its errors, and the destination's code where there was a response. No
// part is, or holds, a value of the event (CONTRACT C-41).
func WithCause(cause Cause, err error) error { return &causedError{cause, err} }

// CauseOf returns what caused err: what the causes of [WithCause] say together, or what is known without one.
func CauseOf(err error) Cause {
	var cause Cause
	var caused *causedError
	for inner := err; errors.As(inner, &caused); inner = caused.err {
		cause = caused.cause.or(cause)
	}
	if cause.Class != "" {
		return cause.bounded()
	}
	switch {
	case errors.Is(err, ErrNoHandler):
		cause = cause.or(Cause{Class: ClassHandler, Code: CodeNoHandler})
	case errors.Is(err, context.DeadlineExceeded):
		cause = cause.or(Cause{Class: ClassHandler, Code: CodeTimeout})
	default:
		cause.Class = ClassHandler
	}
	return cause.bounded()
}

// or takes from another cause what this one does not say.
func (c Cause) or(other Cause) Cause {
	return Cause{cmp.Or(c.Class, other.Class), cmp.Or(c.Code, other.Code), cmp.Or(c.Place, other.Place)}
}

// bounded is the cause with parts that a database takes: short, and valid UTF-8 in one line.
func (c Cause) bounded() Cause {
	return Cause{oneLine(c.Class, maxClass), oneLine(c.Code, maxCode), oneLine(c.Place, maxPlace)}
}

// oneLine cuts a text to a length in bytes, and replaces what is not text.
func oneLine(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	return cut(text, most)
}

// cut cuts a valid text to a length in bytes, between two characters.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "")
}

// WithResponse adds to err the destination's response. It is kept in the dead letter, when the event becomes dead by
// this failure, and nowhere else: it may repeat the event, so no log, metric or status has it (CONTRACT C-73).
// The error is never nil.
func WithResponse(response string, err error) error { return &responseError{response, err} }

// ResponseOf returns the response of [WithResponse], or "".
func ResponseOf(err error) string {
	var with *responseError
	if errors.As(err, &with) {
		return with.response
	}
	return ""
}

// Fingerprint names the group of a dead event: 8 hex digits, the same for all of a topic with one reason and
// one cause. The table outbox_dead_letters computes the same.
func Fingerprint(topic string, reason DeadReason, c Cause) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{topic, string(reason), c.Class, c.Code, c.Place}, "\n")))
	return hex.EncodeToString(sum[:4])
}

type responseError struct {
	response string
	err      error
}

func (e *responseError) Error() string { return e.err.Error() }
func (e *responseError) Unwrap() error { return e.err }

type causedError struct {
	cause Cause
	err   error
}

func (e *causedError) Error() string { return e.err.Error() }
func (e *causedError) Unwrap() error { return e.err }

// Recovery says in one sentence or two what to do about events that are dead for a reason and whose cause has a
// class. It is the one place that does: commands, messages and pages have it from here.
func Recovery(reason DeadReason, class string) string {
	if reason == ReasonProcessingTimeout {
		return "Look why the worker of the last attempt ended, hung, or could not write the outcome back (OutcomesRefused: the event may be delivered), and replay, or discard."
	}
	switch class {
	case ClassDecode:
		return "Raise maxInFlightBytes where the error says so, and replay; a row that cannot be read stays so: correct its producer, and discard."
	case ClassSchema:
		return "Correct the schema, and replay; or correct the producer, and discard."
	case ClassRule:
		return "Correct the rule, and replay; or correct the producer, and discard."
	case ClassRoute:
		return "Add or correct a route that takes the event, and replay."
	case ClassMask:
		return "Correct the transformation, or the schema of what reaches it, and replay."
	case ClassMessage:
		return "Correct the header's expression in message.headers, and replay."
	}
	switch reason {
	case ReasonPoisonMessage:
		return "Fix the handler or the sink that panicked, and replay; or discard."
	case ReasonSchemaValidationFailed:
		return "Correct what the event is checked against, and replay; or correct the producer, and discard."
	case ReasonPermanentFailure:
		return "Fix what the destination refuses the event for, and replay; or discard."
	default:
		return "Fix the destination, and replay; or discard what it need not get."
	}
}
