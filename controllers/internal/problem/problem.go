// Package problem says what stops a pass of a reconciler, in words for the user.
package problem

// Problem stops a pass: a condition that is False until its cause is changed. Make
// one with [Waiting] or [Stalling].
type Problem struct {
	// Condition is the type of the condition that is False, Reason and Message are its.
	Condition, Reason, Message string
	// Stalled means that waiting does not help.
	Stalled bool
}

// Waiting is a problem that may end by itself: the pass is repeated, or a watch triggers one.
func Waiting(condition, reason, message string) *Problem {
	return &Problem{Condition: condition, Reason: reason, Message: message}
}

// Stalling is a problem that stays until a person changes what the message names.
func Stalling(condition, reason, message string) *Problem {
	return &Problem{Condition: condition, Reason: reason, Message: message, Stalled: true}
}

// Error is the reason and the message.
func (p *Problem) Error() string { return p.Reason + ": " + p.Message }
