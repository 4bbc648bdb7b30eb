package dispatcher

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
)

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
