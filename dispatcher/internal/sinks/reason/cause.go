package reason

import (
	"errors"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Codes of causes that no destination gives itself. The words of [Of] are codes too, where there was no response.
const (
	// TooLarge: the message is larger than what is taken.
	TooLarge = "TooLarge"
	// Unwritable: no message can be made of the event.
	Unwritable = "Unwritable"
)

// Coded marks err with the destination's own code for it. The error wraps err.
func Coded(code string, err error) error {
	return dispatcher.WithCause(dispatcher.Cause{Code: code}, err)
}

// Routed marks err as the failure of a route, or of what takes its place, to name a place for the event.
// The error wraps err.
func Routed(err error) error {
	return dispatcher.WithCause(dispatcher.Cause{Class: dispatcher.ClassRoute}, err)
}

// Classify is what each sink defers in Deliver: it gives the errors their cause's class, which is the sink's
// kind, and a code where the destination gave none.
func Classify(class string, errs *[]error) {
	for i, err := range *errs {
		if err != nil {
			(*errs)[i] = dispatcher.WithCause(dispatcher.Cause{Class: class, Code: code(err)}, err)
		}
	}
}

// code is the code of a failure without a response of the destination.
func code(err error) string {
	var m *marked
	switch {
	case IsTimeout(err):
		return dispatcher.CodeTimeout
	case errors.As(err, &m) && m.word == Refusing:
		return ""
	case errors.As(err, &m):
		return m.word
	case IsCertificate(err):
		return CertificateInvalid
	case dispatcher.IsUnavailable(err):
		return ConnectionFailed
	default:
		return ""
	}
}

// TimedOut is a failure because something took too long, with its text. Metrics and spans distinguish it from
// others by its method Timeout.
type TimedOut string

func (t TimedOut) Error() string { return string(t) }

// Timeout is true.
func (TimedOut) Timeout() bool { return true }

// IsTimeout reports whether err says that something took too long: a [TimedOut], a context's deadline, or
// an error of package net.
func IsTimeout(err error) bool {
	var slow interface{ Timeout() bool }
	return errors.As(err, &slow) && slow.Timeout()
}
