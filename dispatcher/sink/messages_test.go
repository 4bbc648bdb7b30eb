package sink_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// digits are numbers that no float holds, and a text that JSON writers escape. The spaces are PostgreSQL's.
const digits = `{"n": 9007199254740993, "long": 123456789012345678901234567890, "price": 0.1234567890123456789012345, "scale": 10.10, "huge": 1e400, "text": "<ü&>"}`

func draftedEvent() *dispatcher.Event {
	return &dispatcher.Event{
		ID: uuid.MustParse("01900000-0000-7000-8000-000000000001"), Seq: 9007199254740993, Namespace: "shop", Topic: "orders", EventType: "OrderPlaced",
		AggregateType: "order", AggregateID: "order-7", CreatedAt: time.Unix(1e9, 0), Payload: json.RawMessage(digits), Attempt: 1, LeaseNumber: 7,
		Headers: map[string]string{"correlation_id": "c-42"},
	}
}

// headerPlaces are how drafts name the header X of a message, by the kind of sink.
func headerPlace(kind, name string) string {
	switch kind {
	case "rabbitmq":
		return "header " + name
	case "http":
		return "X-Type"
	}
	return name
}

// Every kind of sink whose messages have headers takes those of the configuration, in addition to the attributes and in their
// place; in the latter case the body is the payload, byte by byte, and no attribute is there.
//
// CONTRACT: C-70
func TestMessageOfEveryKind(t *testing.T) {
	for _, field := range config.SinkKinds() {
		kind := named(field)
		section := section(kind, "127.0.0.1:1")
		if kind == "log" || kind == "postgres" {
			continue // config refuses it: TestMessageValidate
		}
		t.Run(kind, func(t *testing.T) {
			name := "x-type"
			for _, format := range []string{"CloudEvents", "Plain"} {
				m, err := drafts(t, section+"message: {format: "+format+", headers: {"+name+": 'event.type + \"-\" + string(event.sequence)'}}\n").Draft(t.Context(), draftedEvent())
				if err != nil {
					t.Fatal(err)
				}
				if got := m.Headers[headerPlace(kind, name)]; got != "OrderPlaced-9007199254740993" {
					t.Errorf("%s: the header is %q among %q", format, got, m.Headers)
				}
				attributes := slices.ContainsFunc(slices.Collect(maps.Keys(m.Headers)), func(name string) bool {
					return strings.HasSuffix(strings.ToLower(name), "fencingtoken")
				})
				if attributes == (format == "Plain") {
					t.Errorf("%s: the headers are %q", format, m.Headers)
				}
				if format == "Plain" && string(m.Body) != digits {
					t.Errorf("the body is %s", m.Body)
				}
			}
		})
	}
}

// A number keeps its digits in the message of every sink and mode, also where an expression has changed another
// part of the payload.
//
// CONTRACT: C-70
func TestNumbersKeepTheirDigits(t *testing.T) {
	want := []string{`9007199254740993`, `123456789012345678901234567890`, `0.1234567890123456789012345`, `10.10`, `1e400`}
	for _, field := range config.SinkKinds() {
		kind := named(field)
		section := section(kind, "127.0.0.1:1")
		for _, mode := range []string{"", "  contentMode: Structured\n"} {
			if mode != "" && !strings.Contains(kinds[kind].other, "contentMode") && kind != "nats" {
				continue
			}
			for _, transform := range []string{"", "message: {transform: [{payload: 'with(without(payload, [\"text\"]), {\"added\": payload.n})'}]}\n"} {
				m, err := drafts(t, section+mode+transform).Draft(t.Context(), draftedEvent())
				if err != nil {
					t.Fatalf("%s: %v", kind, err)
				}
				for _, number := range want {
					if !strings.Contains(string(m.Body), number) {
						t.Errorf("%s %s%s: the body has no %s: %s", kind, mode, transform, number, m.Body)
					}
				}
				if transform != "" && !strings.Contains(string(m.Body), `"added":`+want[0]) {
					t.Errorf("%s %s: what was added lost digits: %s", kind, mode, m.Body)
				}
			}
		}
	}
}
