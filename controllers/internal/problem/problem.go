// Package problem says what stops a pass of a reconciler, in words for the user.
package problem

import (
	"strings"
	"unicode"

	"github.com/outbox-operator/outbox-operator/api/spec/schema"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

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

// Incomplete is the problem with the condition that an object of the kind lacks a field which its definition requires, nil for
// none: the API server drops the field of another version of the definition at the next write of the object. name is that of
// an object that another one refers to, empty for the condition's own.
func Incomplete(condition, kind, name string, spec any) error {
	if field := schema.Missing(kind, spec); field != "" {
		if name != "" {
			field = kind + " " + name + ": " + field
		}
		return Stalling(condition, v1alpha1.ReasonInvalidSpec, field+" is missing; set it. An object loses the fields that it had by the names of another version of the definition.")
	}
	return nil
}

// Error is the reason and the message.
func (p *Problem) Error() string { return p.Reason + ": " + p.Message }

// MaxMessage bounds the text of a condition, in bytes: it becomes the note of an event, which must
// be shorter than 1,024.
const MaxMessage = 1000

// Sentence returns the text with a capital at its start (except for a path or a URL) and a full stop at its end, clipped
// to MaxMessage.
func Sentence(text string) string {
	text = Clip(strings.TrimSpace(text), MaxMessage)
	if text == "" {
		return ""
	}
	if !strings.HasSuffix(text, ".") && !strings.HasSuffix(text, "…") {
		text += "."
	}
	if word, _, _ := strings.Cut(text, " "); strings.Contains(word, "://") || strings.HasPrefix(word, "spec.") {
		return text // a URL and the path of a field are written as they are
	}
	runes := []rune(text)
	runes[0] = unicode.ToUpper(runes[0])
	return string(runes)
}

// Clip shortens the text to so many bytes and an ellipsis.
func Clip(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + "…"
}
