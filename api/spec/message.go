package spec

import (
	"fmt"
	"maps"
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

// StorageHeaders are those that [FormatStorage] makes, sorted.
var StorageHeaders = []string{"aggregate_id", "correlation_id", "event_type"}

// Bare is true for the formats without the attributes of CloudEvents.
func (m Message) Bare() bool { return m.Format != FormatCloudEvents && m.Format != "" }

// headerless are the kinds of sinks whose messages have no headers.
var headerless = []string{"log", "postgres"}

const (
	maxHeaders           = 32
	maxMessageHeader     = 128
	messageHeader        = pattern(`^[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*$`)
	maxAttributesAWS     = 10
	attributesOfEventAWS = 8 // see package cloudsink
)

func (c Config) validateMessage(p *problems) {
	m, kind, mode := c.Message, c.Sink.Kind(), c.Sink.ContentMode
	p.oneOf("message.format", string(m.Format), string(FormatCloudEvents), string(FormatPlain), string(FormatDebezium), string(FormatStorage))
	if slices.Contains(headerless, kind) {
		p.when(m.Bare(), "message.format", "is for sinks whose messages have headers, and those of %s have none; remove it", kind)
		p.when(len(m.Headers) > 0, "message.headers", "are for sinks whose messages have headers, and those of %s have none; remove them", kind)
		return
	}
	p.when(m.Format == FormatDebezium && kind != "kafka" && kind != "", "message.format", "Debezium is what its outbox event router writes to Kafka, and the sink is %s; choose Plain with headers of your own, or the sink kafka", kind)
	p.when(m.Bare() && mode != "" && mode != Binary, "message.format", "%s has the payload as the whole body, and contentMode is %s; set contentMode to Binary, or format to CloudEvents", m.Format, mode)
	p.when(len(m.Headers) > 0 && mode == Batch, "message.headers", "are of one event, and contentMode Batch has several in a request; choose another contentMode, or remove headers")
	p.when(len(m.Headers) > maxHeaders, "message.headers", "has %d entries; keep at most %d", len(m.Headers), maxHeaders)
	if most := maxAttributesAWS - attributesOfEventAWS; kind == "sqs" || kind == "sns" {
		if m.Bare() {
			most = maxAttributesAWS
		}
		if m.Format == FormatStorage {
			for _, name := range StorageHeaders {
				if _, replaced := m.Headers[name]; !replaced {
					most--
				}
			}
		}
		p.when(len(m.Headers) > most, "message.headers", "has %d entries, and a message of %s has room for %d in addition to its own; remove some", len(m.Headers), kind, most)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		field := fmt.Sprintf("message.headers[%q]", name)
		p.when(!messageHeader.matches(name) || len(name) > maxMessageHeader, field, "is not the name of a header; use at most %d alphanumeric characters, dashes, underscores and single dots", maxMessageHeader)
		p.when(c.headerTaken(name), field, "is a name that messages of %s have already, or keep for themselves; choose another", kind)
		for other := range m.Headers {
			p.when(other < name && strings.EqualFold(other, name), field, "is there as %q too; remove one", other)
		}
		p.length(field, m.Headers[name], maxExpression)
	}
}

// headerTaken reports whether messages have a header of this name already.
func (c Config) headerTaken(name string) bool {
	if c.Sink.HTTP != nil {
		for own := range c.Sink.HTTP.Headers {
			if strings.EqualFold(own, name) {
				return true
			}
		}
	}
	return HeaderTaken(c.Sink.Kind(), c.Message.Bare(), name)
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
