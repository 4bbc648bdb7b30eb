package sinktest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// What no error may hold: the secret of [NewEvent]'s payload, and those that a test gives to a sink as
// its password and as a wrong one.
const (
	PayloadSecret  = "payload-4111"
	PasswordSecret = "password-4222"
	WrongSecret    = "wrong-4333"
)

// Class is what an outcome does to an event (CONTRACT C-32).
type Class string

// The classes: an attempt is spent, none is, the destination is at fault, or no attempt can succeed.
const (
	Failed      Class = "failed"
	Unavailable Class = "unavailable"
	Fault       Class = "destination's fault"
	Permanent   Class = "dead: permanent_failure"
)

// ClassOf returns the class of an error, and "" for nil.
func ClassOf(err error) Class {
	why, permanent := dispatcher.PermanentReason(err)
	switch {
	case err == nil:
		return ""
	case permanent:
		return Class("dead: " + why)
	case dispatcher.IsUnavailable(err):
		return Unavailable
	case dispatcher.IsDestinationFault(err):
		return Fault
	}
	return Failed
}

// Outcome is [Want] with the class of the error.
func Outcome(t testing.TB, what string, err error, class Class, word, text string) {
	t.Helper()
	Want(t, what, err, class == Unavailable, word, text)
	if got := ClassOf(err); got != class {
		t.Errorf("%s: the outcome is %q, want %q: %v", what, got, class, err)
	}
}

// NewEvent returns an event of topic orders with a secret in its payload.
func NewEvent() *dispatcher.Event {
	return &dispatcher.Event{
		ID: uuid.Must(uuid.NewV7()), Seq: 1, Namespace: "shop", Topic: "orders", Attempt: 1, Headers: map[string]string{},
		Payload: []byte(`{"secret":"` + PayloadSecret + `"}`), CreatedAt: time.Unix(1_770_000_000, 0),
	}
}

// NewEvents returns n of them.
func NewEvents(n int) []*dispatcher.Event {
	batch := make([]*dispatcher.Event, n)
	for i := range batch {
		batch[i] = NewEvent()
	}
	return batch
}

// Sized returns an event with about n bytes of payload.
func Sized(n int) *dispatcher.Event {
	e := NewEvent()
	e.Payload = []byte(`"` + PayloadSecret + strings.Repeat("7", n) + `"`)
	return e
}

// Dead checks that an event is refused for good: as its own failure, with the text.
func Dead(t testing.TB, what string, err error, text string) {
	t.Helper()
	Outcome(t, what, err, Permanent, reason.Refusing, text)
}

// Verify checks what holds for every error of a sink, and returns it: a remedy, on one line, and no
// secret (CONTRACT C-73).
func Verify(t testing.TB, err error) error {
	t.Helper()
	if err == nil {
		return nil
	}
	text := err.Error()
	for _, secret := range []string{PayloadSecret, PasswordSecret, WrongSecret, "postgres://"} {
		if strings.Contains(text, secret) {
			t.Errorf("the error holds %q: %s", secret, text)
		}
	}
	if strings.Contains(text, "\n") || !strings.Contains(text, "; ") && !strings.Contains(text, "interrupted") {
		t.Errorf("the error must be one line with a remedy behind a semicolon: %s", text)
	}
	return err
}

// Want checks an error's class, its word (see package reason), and a part of its text.
func Want(t testing.TB, what string, err error, unavailable bool, word, text string) {
	t.Helper()
	switch {
	case Verify(t, err) == nil:
		t.Errorf("%s: no error", what)
	case dispatcher.IsUnavailable(err) != unavailable:
		t.Errorf("%s: unavailable is %v: %v", what, !unavailable, err)
	case reason.Of(err) != word:
		t.Errorf("%s: the reason is %s, want %s: %v", what, reason.Of(err), word, err)
	case !strings.Contains(err.Error(), text):
		t.Errorf("%s: the error does not say %q: %v", what, text, err)
	case strings.Contains(text, " within ") && !reason.IsTimeout(err):
		t.Errorf("%s: metrics count timeouts, and this is none: %v", what, err)
	}
}

// IsFault checks whether an error is the destination's fault.
func IsFault(t testing.TB, what string, err error, fault bool) {
	t.Helper()
	if dispatcher.IsDestinationFault(err) != fault {
		t.Errorf("%s: that it is the destination's fault is %v, want %v: %v", what, !fault, fault, err)
	}
}

// File makes a file, such as one with a password, and returns its path.
func File(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	Write(t, path, content)
	return path
}

// Login makes files with a user and a password, each with a line break at its end.
func Login(t testing.TB, typ spec.AuthType, user, password string) *spec.Auth {
	t.Helper()
	return &spec.Auth{Type: typ, UsernameFile: File(t, "user", user+"\n"), SecretFile: File(t, "password", password+"\n")}
}

// Write writes a file.
func Write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
