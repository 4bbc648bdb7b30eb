package sinktest

import (
	"encoding/json"
	"math"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

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
