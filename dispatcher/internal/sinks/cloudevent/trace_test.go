package cloudevent_test

import (
	"maps"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudevent"
)

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
		if !maps.Equal(got, test.want) {
			t.Errorf("%v: got %v, want %v", test.headers, got, test.want)
		}
	}
}
