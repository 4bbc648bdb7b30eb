package cloudevent

import (
	"maps"
	"slices"
	"strings"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// What the row's headers under their own names take of a message, at most. Their attributes have them all.
const (
	maxOwnHeaders = 32
	maxOwnBytes   = 8 << 10
)

// OtherHeaders calls set with the headers that a message of a kind of sink has in addition to the attributes of CloudEvents,
// or in their place, each once and under its very name: the trace context, the headers that the configuration
// makes, and the row's headers whose names are not those of attributes.
func OtherHeaders(kind string, e *dispatcher.Event, set func(name, value string)) {
	Trace(e, set)
	for _, h := range e.Message.Headers {
		set(h.Name, h.Value)
	}
	OwnHeaders(kind, e, set)
}

// OwnHeaders calls set with those of [OtherHeaders] that are the row's headers under their own names, in their order.
func OwnHeaders(kind string, e *dispatcher.Event, set func(name, value string)) {
	if e.Message.Bare || len(e.Headers) == 0 || !carriesOwn(kind) {
		return
	}
	n, bytes := 0, 0
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		value := e.Headers[name]
		configured := slices.ContainsFunc(e.Message.Headers, func(h dispatcher.Header) bool { return strings.EqualFold(h.Name, name) })
		if attributeName(name) == name || configured || spec.HeaderTaken(kind, false, name) || !carries(kind, name, value) {
			continue
		}
		n, bytes = n+1, bytes+len(name)+len(value)
		if n > maxOwnHeaders || bytes > maxOwnBytes {
			return
		}
		set(name, value)
	}
}

// carriesOwn reports whether messages of a kind of sink have the row's headers under their own names. HTTP does
// not, because servers and what stands before them act on headers that anybody may choose; SQS and SNS take ten
// attributes; those of Redis are its fields.
func carriesOwn(kind string) bool {
	switch kind {
	case "kafka", "nats", "rabbitmq", "pubSub", "serviceBus":
		return true
	}
	return false
}

// carries reports whether the protocol has such names and values.
func carries(kind, name, value string) bool {
	switch kind {
	case "nats":
		return name != "" && isPrintableASCII(name) && !strings.ContainsAny(name, " :") && isPrintableASCII(value)
	case "pubSub":
		return name != "" && len(name) <= 256 && len(value) <= 1024
	case "rabbitmq":
		return len(name) <= 255
	}
	return name != ""
}

// HeaderText is the value of a header that the configuration makes, for protocols whose headers are printable
// ASCII: as it is, or percent-encoded like an attribute's when it has other characters.
func HeaderText(value string) string {
	if isPrintableASCII(value) && strings.TrimSpace(value) == value {
		return value
	}
	return PercentEncode(value)
}
