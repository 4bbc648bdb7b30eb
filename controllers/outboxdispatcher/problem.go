package outboxdispatcher

import "errors"

// problem stops a pass: a condition that is False until somebody, or something, changes the cause.
type problem struct {
	condition, reason, message string
	// stalled means that waiting does not help.
	stalled bool
}

func (p *problem) Error() string { return p.reason + ": " + p.message }

// errWait stops a pass until the migration has ended.
var errWait = errors.New("waiting for the migration")
