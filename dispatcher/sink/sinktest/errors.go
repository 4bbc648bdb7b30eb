package sinktest

import (
	"encoding/json"
	"math"
	"net/url"
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

// Awkward is an event that is not easy to put into a message, and what a reader must find.
type Awkward struct {
	Name  string
	Event *dispatcher.Event
	// Type, Subject and Key are as they arrive: with U+FFFD in place of what CloudEvents forbids.
	Type, Subject, Key string
}

// large is the size of the largest payload.
const large = 900 << 10

// AwkwardEvents are seventeen events of odd keys, payloads, headers, ids and times. Their payloads are as jsonb
// writes them, but without spaces.
func AwkwardEvents() []Awkward {
	all := []struct {
		name   string
		change func(*dispatcher.Event)
	}{
		{"unicode key", func(e *dispatcher.Event) { e.AggregateID = "Größe-鍵-🔑" }},
		{"long key", func(e *dispatcher.Event) { e.AggregateID = strings.Repeat("k", 5000) }},
		{"long unicode key", func(e *dispatcher.Event) { e.PartitionKey = strings.Repeat("鍵", 1666) + "ab" }},
		{"key that injects headers", func(e *dispatcher.Event) { e.AggregateID = "a\r\nX-Injected: b\x01\x7f\u0085\u2028\ufffe" }},
		{"key of punctuation", func(e *dispatcher.Event) { e.AggregateID = `100% "quoted" \back/slash; a=b, c` }},
		{"empty object", func(e *dispatcher.Event) { e.Payload = []byte(`{}`) }},
		{"empty text", func(e *dispatcher.Event) { e.Payload = []byte(`""`) }},
		{"900 KB", func(e *dispatcher.Event) {
			e.Payload = []byte(`{"pad":"` + strings.Repeat("ü", (large-10)/2) + `"}`)
		}},
		{"long numbers", func(e *dispatcher.Event) {
			e.Payload = []byte(`{"n":9007199254740993,"max":18446744073709551615,"long":-123456789012345678901234567890,"scale":10.10,"decimal":0.1234567890123456789012345}`)
		}},
		{"escapes", func(e *dispatcher.Event) {
			e.Payload = []byte(`{"":"\u0001\t\"\\/","<&>":"\u2028🔑"}`)
		}},
		{"nothing that is optional", func(e *dispatcher.Event) { e.EventType, e.AggregateID, e.AggregateType, e.Headers = "", "", "", nil }},
		{"headers without values", func(e *dispatcher.Event) {
			e.Headers = map[string]string{"nothing": "", "text_null": "null", "space": " "}
		}},
		{"headers of odd names", func(e *dispatcher.Event) {
			e.Headers = map[string]string{"a b": "1", "a-b": "2", "ab": "3", "größe": "4", "ID": "5", "ce_type": "6", "ce-type": "7", "line\r\nX-Injected": "8\r\nX: y", "___": "9"}
		}},
		{"largest ids", func(e *dispatcher.Event) {
			e.ID, e.Seq, e.LeaseNumber, e.Attempt = uuid.Max, math.MaxInt64, math.MaxInt64, 1000
			e.TenantID = uuid.NullUUID{UUID: uuid.Max, Valid: true}
			e.DedupeKey = strings.Repeat("d", 1000)
		}},
		{"first moment", func(e *dispatcher.Event) { e.CreatedAt = time.Unix(0, 1000).UTC() }},
		{"last moment", func(e *dispatcher.Event) { e.CreatedAt = time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC) }},
		{"long type", func(e *dispatcher.Event) { e.EventType = strings.Repeat("Größe.", 50) }},
	}
	made := make([]Awkward, len(all))
	for i, a := range all {
		e := bareEvent()
		e.ID, e.EventType, e.AggregateType, e.AggregateID = uuid.Must(uuid.NewV7()), "OrderPlaced", "order", "order-7"
		a.change(e)
		made[i] = Awkward{a.name, e, Arrives(e.EventType), Arrives(e.AggregateID), Arrives(e.Key())}
		if e.EventType == "" {
			made[i].Type = e.Topic
		}
	}
	return made
}

// Arrives is a text without what CloudEvents forbids in one. The characters are those of the events above.
func Arrives(text string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("\r\n\x01\x7f\u0085\ufffe", r) {
			return '\ufffd'
		}
		return r
	}, text)
}

// Check compares what arrived with the event: id, source, type, subject, time, key, and the payload's bytes.
func (a Awkward) Check(t *testing.T, got Message) {
	t.Helper()
	e := a.Event
	for name, want := range map[string][2]string{ // with what CloudEvents forbids, and without
		"id":           {e.ID.String()},
		"source":       {"/outbox/" + url.PathEscape(e.Namespace) + "/" + url.PathEscape(e.Topic)},
		"type":         {a.Type, e.EventType},
		"subject":      {a.Subject, e.AggregateID},
		"time":         {e.CreatedAt.Format(time.RFC3339Nano)},
		"partitionkey": {a.Key, e.Key()},
	} {
		if value := got.Attributes[name]; value != want[0] && (want[1] == "" || value != want[1]) {
			t.Errorf("%s: %s is %.100q, want %.100q", a.Name, name, value, want[0])
		}
	}
	if got.Payload != string(e.Payload) && !sameJSON(got.Payload, string(e.Payload)) {
		t.Errorf("%s: the payload of %d bytes arrived as %d: %.200s", a.Name, len(e.Payload), len(got.Payload), got.Payload)
	}
}

// sameJSON reports whether two texts are the same JSON, number for number as they are written. A JSON format may
// write a text's characters in another way.
func sameJSON(a, b string) bool {
	written := func(text string) (string, error) {
		var v any
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		if err := d.Decode(&v); err != nil {
			return "", err
		}
		out, err := json.Marshal(v)
		return string(out), err
	}
	x, errX := written(a)
	y, errY := written(b)
	return errX == nil && errY == nil && x == y
}

// Seventeen awkward events arrive as they are, one by one, and harm no other.
func exerciseAwkward(t *testing.T, d Destination) {
	want := map[string]Awkward{}
	for _, a := range AwkwardEvents() {
		err := deliver(t, t.Context(), d, []*dispatcher.Event{a.Event})[0]
		_, dead := dispatcher.PermanentReason(err)
		switch why := d.Cannot["Large"]; {
		case len(a.Event.Payload) >= large-10 && why != "":
			if !dead {
				t.Errorf("%s: %v; want it dead: %s", a.Name, err, why)
			}
		case err != nil:
			t.Errorf("%s was not delivered: %v", a.Name, err)
		default:
			want[a.Event.ID.String()] = a
		}
	}
	for _, m := range d.Arrived() {
		a, ok := want[m.Attributes["id"]]
		if !ok {
			t.Errorf("what arrived as %q was never sent, or arrived twice", m.Attributes["id"])
			continue
		}
		delete(want, m.Attributes["id"])
		if d.NoPayload {
			m.Payload = string(a.Event.Payload)
		}
		a.Check(t, m)
	}
	for _, a := range want {
		t.Errorf("%s did not arrive", a.Name)
	}
}
