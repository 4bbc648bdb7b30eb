package spec

import (
	"slices"
	"strings"
)

// MessageFormat is the format of messages.
// +kubebuilder:validation:Enum=CloudEvents;Plain;Debezium;Storage
type MessageFormat string

const (
	// FormatCloudEvents is CloudEvents 1.0.
	FormatCloudEvents MessageFormat = "CloudEvents"
	// FormatPlain is the payload, with headers of your own.
	FormatPlain MessageFormat = "Plain"
	// FormatDebezium is what Debezium's outbox event router writes.
	FormatDebezium MessageFormat = "Debezium"
	// FormatStorage has metadata in the payload.
	FormatStorage MessageFormat = "Storage"
)

// Message says what an event becomes on its way to the sink. Format and headers are for sinks whose messages have
// headers: all but log and postgres.
//
// +kubebuilder:object:generate=false
type Message struct {
	// Format is CloudEvents, Plain, Debezium or Storage. All but CloudEvents are for contentMode Binary.
	// Defaults to CloudEvents.
	Format MessageFormat `json:"format,omitempty"`
	// Headers are CEL expressions over event and payload, by the names of the headers that they make, at most 32.
	// They are added to those of the format, and replace those of the same name. A header whose value is empty is left out. Not
	// for contentMode Batch. Defaults to none.
	Headers map[string]string `json:"headers,omitempty"`
	// Validation is what payloads must be like, by event type, at most 64 entries. Defaults to none.
	Validation []Validation `json:"validation,omitempty"`
	// Transform changes payloads after their validation, by event type, at most 64 entries; all that are
	// for an event's type, in this order. Defaults to none.
	Transform []Transformation `json:"transform,omitempty"`
	// SchemaRegistry is where schemas are read from. Defaults to none.
	SchemaRegistry *SchemaRegistry `json:"schemaRegistry,omitempty"`
}

// Bare is true for the formats without the attributes of CloudEvents.
func (m Message) Bare() bool { return m.Format != FormatCloudEvents && m.Format != "" }

// MessageHeader is a header, an attribute or a field of a message.
type MessageHeader struct {
	// name is the name of the header. Case is kept where the protocol has case.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*$')",message="name must be a name of alphanumeric characters, dashes, underscores and single dots, such as event_type; correct it"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^(?i)(ce-|ce_|cloudevents)') && !(self.lowerAscii() in ['content-type', 'traceparent', 'tracestate'])",message="name must be none that messages have already (ce-*, ce_*, cloudEvents*, content-type, traceparent, tracestate); choose another"
	Name string `json:"name,omitempty"`

	// expression is a CEL expression over event and payload that returns a string, a
	// number, a bool or a timestamp, or an optional one, such as event.type or
	// 'event.headers.?correlation_id'. A header without a value is left out.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Expression string `json:"expression,omitempty"`
}

// HeaderTaken reports whether a kind of sink, its library or what reads its messages has a header, attribute or
// field of this name of its own, so that no other may have it. Bare messages have no attributes of CloudEvents.
func HeaderTaken(kind string, bare bool, name string) bool {
	lower := strings.ToLower(name)
	switch lower {
	case "content-type", "traceparent", "tracestate":
		return true
	}
	begins := func(prefixes ...string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(lower, prefix) })
	}
	if begins("ce-", "ce_", "cloudevents") {
		return true
	}
	switch kind {
	case "http":
		return slices.Contains(ReservedHeaders, lower)
	case "nats":
		return begins("nats-")
	case "rabbitmq": // which routes copies by them
		return lower == "cc" || lower == "bcc"
	case "redis": // whose attributes have no prefix
		return name == "data" || !bare && !strings.ContainsFunc(name, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
	case "pubSub":
		return begins("goog")
	case "sqs", "sns":
		return begins("aws.", "amazon.")
	}
	return false
}
