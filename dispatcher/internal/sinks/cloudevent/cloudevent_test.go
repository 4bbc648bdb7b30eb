package cloudevent

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func base() *dispatcher.Event {
	return &dispatcher.Event{
		ID: uuid.MustParse("0197a1e0-0000-7000-8000-000000000001"), Seq: 42,
		Namespace: "shop", Topic: "orders", Headers: map[string]string{},
		Payload: json.RawMessage(`{"order":7}`), CreatedAt: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Attempt: 2, LeaseNumber: 77,
	}
}

// The attributes of a whole and of a bare event are tested by sinktest.Exercise, on every sink.

// CONTRACT: C-71
// REQUIREMENT: STORAGE-9, STORAGE-28
func TestPartitionKeyIsTheEventsKey(t *testing.T) {
	e := base()
	for _, want := range []string{e.ID.String(), "aggregate", "explicit"} {
		switch want {
		case "aggregate":
			e.AggregateID = want
		case "explicit":
			e.PartitionKey = want
		}
		need.Want[any](t, want, "partitionkey is %v, want %s", New(e).Extensions()["partitionkey"])
	}
}

// CONTRACT: C-70
func TestIntegersAreNumbers(t *testing.T) {
	line, err := New(base()).MarshalJSON()
	need.OK(t, err)
	var got struct {
		Attempt                json.Number
		FencingToken, Sequence string
	}
	if err := json.Unmarshal(line, &got); err != nil || got.Attempt != "2" {
		t.Errorf("attempt must be a JSON number: %v in %s", err, line)
	}
	if got.Sequence != "0000000000000000042" || got.FencingToken != "0000000000000000077" {
		t.Errorf("sequence is %q and fencingtoken %q; they must sort as text", got.Sequence, got.FencingToken)
	}
}

func TestSourceEscapesNamespaceAndTopic(t *testing.T) {
	for _, test := range []struct{ namespace, topic, want string }{
		{"shop", "orders", "/outbox/shop/orders"},
		{"a b", "x/y", "/outbox/a%20b/x%2Fy"},
		{"日本", "100%?#", "/outbox/%E6%97%A5%E6%9C%AC/100%25%3F%23"},
		{"shop", "order.placed-v1_x~:@", "/outbox/shop/order.placed-v1_x~:@"},
	} {
		e := base()
		e.Namespace, e.Topic = test.namespace, test.topic
		need.Want(t, test.want, "source of %q, %q is %q, want %q", New(e).Source(), test.namespace, test.topic)
	}
}

func TestTypeAndSubjectFallBack(t *testing.T) {
	for _, test := range []struct{ eventType, aggregateID, wantType, wantSubject string }{
		{"", "", "orders", ""},
		{"OrderPlaced", "o-7", "OrderPlaced", "o-7"},
		{" ", "\t", "orders", ""}, // CloudEvents readers take blank for empty, which they refuse
	} {
		e := base()
		e.EventType, e.AggregateID = test.eventType, test.aggregateID
		ce := New(e)
		if ce.Type() != test.wantType || ce.Subject() != test.wantSubject {
			t.Errorf("%q, %q: type %q and subject %q, want %q and %q", test.eventType, test.aggregateID,
				ce.Type(), ce.Subject(), test.wantType, test.wantSubject)
		}
	}
}

// The table of doc.go, and what it says about the table.
//
// CONTRACT: C-70
func TestHeadersBecomeAttributeNames(t *testing.T) {
	for _, test := range []struct {
		name          string
		headers, want map[string]string
	}{
		{"plain", map[string]string{"traceparent": "00-1-2-01", "tracestate": "a=b"}, map[string]string{"traceparent": "00-1-2-01", "tracestate": "a=b"}},
		{"cleaned", map[string]string{"correlation_id": "1", "Schema-Version": "2"}, map[string]string{"correlationid": "1", "schemaversion": "2"}},
		{"reserved", map[string]string{"source": "1", "tenant_id": "2", "Data": "3", "specversion": "4", "dedupeKey": "5"},
			map[string]string{"headersource": "1", "headertenantid": "2", "headerdata": "3", "headerspecversion": "4", "headerdedupekey": "5"}},
		{"empty name", map[string]string{"___": "1", "日本": "2"}, map[string]string{"header": "1", "header2": "2"}},
		{"collision", map[string]string{"correlation_id": "2", "correlationId": "1", "CORRELATION-ID": "0"},
			map[string]string{"correlationid": "0", "correlationid2": "1", "correlationid3": "2"}},
		{"collision with a number", map[string]string{"a": "1", "A": "0", "a2": "2"}, map[string]string{"a": "1", "a2": "2", "a3": "0"}},
		{"collision with an exact name", map[string]string{"ab4": "0", "a b": "1", "a-b": "2", "a_b": "3", "ab": "4"},
			map[string]string{"ab4": "0", "ab": "4", "ab2": "1", "ab3": "2", "ab5": "3"}},
		{"empty value", map[string]string{"flag": ""}, map[string]string{"flag": ""}},
		{"illegal values", map[string]string{"a": "x\ny", "b": "\x00\x7f\u0085", "c": "\xff", "d": "é 日本 😀", "e": "\ufffe\ufdd0\U0001ffff"},
			map[string]string{"a": "x\ufffdy", "b": "\ufffd\ufffd\ufffd", "c": "\ufffd", "d": "é 日本 😀", "e": "\ufffd\ufffd\ufffd"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := base()
			own := New(e).Extensions()
			e.Headers = test.headers
			got := New(e).Extensions()
			for name, value := range own {
				need.Want(t, value, "a header changed the attribute %s from %v to %v", got[name], name, value)
				delete(got, name)
			}
			want := map[string]any{}
			for name, value := range test.want {
				want[name] = value
			}
			need.That(t, maps.Equal(got, want), "got %v, want %v", got, want)
		})
	}
}

// Whatever a row holds, the CloudEvents SDK accepts what becomes of it and reads it back.
func TestAlwaysValid(t *testing.T) {
	nasty := []string{"x", " ", "a b", "\n", "\xff\xfe", "\u0000", "%zz", "\"\\", "日本", "..", "/", "?#", "ce-id", strings.Repeat("x", 300)}
	for i, s := range nasty {
		e := base()
		e.Namespace, e.DedupeKey, e.PartitionKey, e.EventType, e.AggregateType, e.AggregateID = s, s, s, s, s, s
		e.Headers = map[string]string{s: s, nasty[(i+1)%len(nasty)]: s}
		e.TenantID = uuid.NullUUID{UUID: e.ID, Valid: true}
		ce := New(e)
		if err := ce.Validate(); err != nil {
			t.Errorf("%q: %v", s, err)
		}
		line, err := ce.MarshalJSON()
		need.OK(t, err)
		var back event.Event
		if err := json.Unmarshal(line, &back); err != nil {
			t.Errorf("%q: %v", s, err)
			continue
		}
		need.That(t, len(back.Extensions()) == len(ce.Extensions()) && back.Source() == ce.Source() && string(back.Data()) == string(e.Payload), "%q: read back as %v, want %v", s, back, ce)
		for name := range ce.Extensions() {
			need.That(t, event.IsExtensionNameValid(name) && name == strings.ToLower(name), "%q makes the attribute name %q", s, name)
		}
	}
}

// A new attribute of the dispatcher must be added to the names that headers cannot have.
func TestTakenIsComplete(t *testing.T) {
	e := base()
	e.DedupeKey, e.AggregateType, e.AggregateID, e.AggregateSequence = "d", "t", "i", 1
	e.TenantID = uuid.NullUUID{UUID: e.ID, Valid: true}
	for name := range New(e).Extensions() {
		need.That(t, taken[name], "%s is missing from taken", name)
	}
	need.Want(t, len(New(e).Extensions())+9, "taken has %d names; nine of CloudEvents and those of the dispatcher are %d", len(slices.Collect(maps.Keys(taken))))
}
