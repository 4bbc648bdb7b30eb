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

// Message is what an event becomes on its way to the sink. Format and headers are not for log and postgres, whose
// messages have no headers.
type Message struct {
	// format is CloudEvents (1.0, as the sink's contentMode says), Plain (the payload,
	// with the event's trace context and those of headers), Debezium (Plain, as its outbox
	// event router writes it to Kafka: a header id with the event id, and topics
	// outbox.event.<aggregate type> where neither routes nor the sink's topic says
	// otherwise) or Storage (Plain, with headers event_type, aggregate_id and
	// correlation_id, and a member metadata of the payload with the row's headers,
	// outbox_id and sequence_number). All but CloudEvents are for contentMode
	// Binary. Defaults to CloudEvents.
	// +optional
	// +kubebuilder:default=CloudEvents
	Format MessageFormat `json:"format,omitempty"`

	// headers are computed for each event. They are added to those of the format, and
	// replace those of the same name. Not for contentMode Batch, whose requests have
	// several events. At most two for sqs and sns with format CloudEvents, and ten
	// with another, among them those of format Storage.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a.name.lowerAscii() == b.name.lowerAscii()))",message="headers must not name a header twice, in whatever case; remove one of the two"
	Headers []MessageHeader `json:"headers,omitempty"`

	// validation checks payloads by event type, with JSON Schemas and CEL rules. Every
	// entry for the type of an event applies. An invalid event is dead at once.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Validation []Validation `json:"validation,omitempty"`

	// transform changes payloads after their validation, by event type: for data that
	// must not leave the database. Every entry for the type of an event applies, in
	// this order.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Transform []Transformation `json:"transform,omitempty"`

	// schemaRegistry is the registry of the schemas that encoding and validation name.
	// When not set: none.
	// +optional
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
