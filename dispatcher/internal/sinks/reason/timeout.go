package reason

import "errors"

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
