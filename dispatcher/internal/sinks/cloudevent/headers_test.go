package cloudevent_test

import (
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudevent"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func other(t *testing.T, kind string, e *dispatcher.Event) map[string]string {
	t.Helper()
	got := map[string]string{}
	cloudevent.OtherHeaders(kind, e, func(name, value string) {
		if _, twice := got[name]; twice {
			t.Errorf("%s: %q is there twice", kind, name)
		}
		got[name] = value
	})
	return got
}

// A header that no attribute can be named after goes under its own name, unless messages have that name, or the
// protocol cannot carry it. What the configuration makes comes first.
//
// CONTRACT: C-70
func TestOtherHeadersHaveTheirOwnNames(t *testing.T) {
	e := &dispatcher.Event{
		Headers: map[string]string{
			"correlation_id": "c-42", "Schema-Version": "2", "region": "eu", "topic": "theirs", "ce_type": "x", "Content-Type": "text/plain", "CC": "all",
			"Nats-Msg-Id": "1", "größe": "ü", "a b": "c", "line": "a\nb", "Two Lines": "a\r\nX: b", "event_type": "theirs", "": "empty",
			"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		},
		Message: dispatcher.Message{Headers: []dispatcher.Header{{Name: "event_type", Value: "ours"}}},
	}
	trace := e.Headers["traceparent"]
	all := map[string]string{
		"traceparent": trace, "event_type": "ours", "correlation_id": "c-42", "Schema-Version": "2", "topic": "theirs", "CC": "all", "Nats-Msg-Id": "1",
		"größe": "ü", "a b": "c", "Two Lines": "a\r\nX: b",
	}
	without := func(names ...string) map[string]string {
		left := map[string]string{}
		for name, value := range all {
			left[name] = value
		}
		for _, name := range names {
			delete(left, name)
		}
		return left
	}
	ours := map[string]string{"traceparent": trace, "event_type": "ours"}
	for kind, want := range map[string]map[string]string{
		"kafka": all, "serviceBus": all, "pubSub": all,
		"rabbitmq": without("CC"),
		"nats":     without("Nats-Msg-Id", "größe", "a b", "Two Lines"),
		"http":     ours, "sqs": ours, "redis": ours,
	} {
		if kind == "rabbitmq" {
			want[""] = "empty" // AMQP has empty names
		}
		if got := other(t, kind, e); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %q\nwant %q", kind, got, want)
		}
	}
	e.Message.Bare = true
	if got := other(t, "kafka", e); !reflect.DeepEqual(got, ours) {
		t.Errorf("bare: %q", got)
	}
}

// CONTRACT: C-35
func TestOtherHeadersAreBounded(t *testing.T) {
	many, large := &dispatcher.Event{Headers: map[string]string{}}, &dispatcher.Event{Headers: map[string]string{}}
	for i := range 100 {
		many.Headers[fmt.Sprintf("h_%03d", i)] = "x"
		large.Headers[fmt.Sprintf("h_%03d", i)] = strings.Repeat("x", 1000)
	}
	if got := other(t, "kafka", many); len(got) != 32 || got["h_000"] == "" || got["h_031"] == "" {
		t.Errorf("%d of 100, want the first 32", len(got))
	}
	if got := other(t, "kafka", large); len(got) != 8 || got["h_007"] == "" {
		t.Errorf("%d of a kilobyte each, want the first 8", len(got))
	}
}

func TestHeaderTextIsPrintable(t *testing.T) {
	for value, want := range map[string]string{
		"Bearer a b%": "Bearer a b%", "": "", " a": "%20a", "Zoë 5%": "Zo%C3%AB%205%25", "a\r\nX: b": "a%0D%0AX:%20b",
	} {
		need.Want(t, want, "%q: %q, want %q", cloudevent.HeaderText(value), value)
	}
}

// CONTRACT: C-70
func TestTraceHeadersAreCheckedBeforeTheyAreSent(t *testing.T) {
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, test := range []struct{ headers, want map[string]string }{
		{map[string]string{}, map[string]string{}},
		{map[string]string{"traceparent": parent, "tracestate": "a=b", "other": "x"}, map[string]string{"traceparent": parent, "tracestate": "a=b"}},
		{map[string]string{"traceparent": parent, "tracestate": "a=b\r\nx: y"}, map[string]string{"traceparent": parent}},
		{map[string]string{"traceparent": parent + "\r\nx: y"}, map[string]string{}},
		{map[string]string{"traceparent": "something else", "tracestate": "a=b"}, map[string]string{}},
	} {
		got := map[string]string{}
		cloudevent.Trace(&dispatcher.Event{Headers: test.headers}, func(name, value string) { got[name] = value })
		need.That(t, maps.Equal(got, test.want), "%v: got %v, want %v", test.headers, got, test.want)
	}
}
