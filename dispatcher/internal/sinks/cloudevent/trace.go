package cloudevent

import (
	"regexp"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}`)

// Trace calls set with the W3C headers traceparent and tracestate of the event's trace context, if it has
// one. Sinks send them under these very names in addition to the attributes, because what instruments consumers
// looks for them and not for CloudEvents'.
func Trace(e *dispatcher.Event, set func(name, value string)) {
	parent, state := e.Headers["traceparent"], e.Headers["tracestate"]
	if !traceparent.MatchString(parent) || !isPrintableASCII(parent) {
		return
	}
	set("traceparent", parent)
	if state != "" && isPrintableASCII(state) {
		set("tracestate", state)
	}
}
