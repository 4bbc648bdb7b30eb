package spec

import (
	"slices"
	"strings"
	"time"
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

// Validation is what the payload of some events must be like. An event that does not meet it is dead at once, with the
// reason schema_validation_failed: it is neither sent nor retried.
//
// +kubebuilder:validation:XValidation:rule="has(self.schema) || has(self.rules) && self.rules.size() > 0",message="validation must check something; add schema or rules, or remove the entry"
type Validation struct {
	// types are the event types that the entry applies to. One that ends with * stands
	// for all types that begin with the text before it, such as order.*. Empty means
	// all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	Types []string `json:"types,omitempty"`

	// versions are the event versions that the entry applies to: the header
	// event_version, else schema_version, else 1.0.0. One that ends with * stands for
	// all that begin with the text before it. Where entries of a type name versions
	// with a schema, an event of another version is refused. An entry for all versions
	// does not admit it. Empty means all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	Versions []string `json:"versions,omitempty"`

	// schema is the JSON Schema that payloads must fit. When not set: none.
	// +optional
	Schema *PayloadSchema `json:"schema,omitempty"`

	// rules must all be true.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Rules []Rule `json:"rules,omitempty"`
}

// PayloadSchema names a JSON Schema: exactly one of its members. Its $schema is draft 7 or 2020-12, which is the
// default.
//
// +kubebuilder:validation:XValidation:rule="[has(self.inline), has(self.configMapRef), has(self.registry)].filter(set, set).size() == 1",message="schema must have exactly one of inline, configMapRef and registry; add the one that has the JSON Schema, or remove the others"
type PayloadSchema struct {
	// inline is the schema itself, as JSON.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	Inline string `json:"inline,omitempty"`

	// configMapRef is the ConfigMap that holds the schema, as JSON. Pods read it again
	// when it changes; a schema that does not compile is not used. Its key, when not
	// set: schema.json.
	// +optional
	ConfigMapRef *ConfigMapRef `json:"configMapRef,omitempty"`

	// registry is the schema in the schema registry; see spec.message.schemaRegistry.
	// +optional
	Registry *RegistrySchema `json:"registry,omitempty"`

	// File has what configMapRef names, where a process reads it.
	File string `json:"-"`
}

// RegistrySchema is a version of a subject in the schema registry.
type RegistrySchema struct {
	// subject is the name of the subject.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Subject string `json:"subject,omitempty"`

	// version is a version of the subject. When not set: the latest, refreshed as
	// spec.message.schemaRegistry says.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	Version int32 `json:"version,omitempty"`
}

// Rule is a condition that payloads must meet.
type Rule struct {
	// rule is a CEL expression over event and payload that returns a bool, such as
	// 'payload.total > 0 || has(payload.voucher)'.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Rule string `json:"rule,omitempty"`

	// message is the error when the rule is false.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// Transformation changes the payload of some events before delivery. The row is not changed.
type Transformation struct {
	// types are the event types that the entry applies to. One that ends with * stands
	// for all types that begin with the text before it, such as order.*. Empty means
	// all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	Types []string `json:"types,omitempty"`

	// payload is a CEL expression over event and payload that returns the new payload,
	// a map, such as 'without(payload, ["card", "customer.email"])'. It has the
	// functions without, mask and with, in addition to those of CEL.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Payload string `json:"payload,omitempty"`
}

// SchemaRegistry is a schema registry: Confluent's Schema Registry, or one with the same API. Dispatchers register
// nothing in it.
//
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || self.url.startsWith('https://') && [has(self.tls.caSecretRef), has(self.tls.caConfigMapRef), has(self.tls.clientCertSecretRef), has(self.tls.serverName)].exists(set, set)",fieldPath=".tls",message="tls is for an https:// url, and must have caSecretRef, caConfigMapRef, clientCertSecretRef or serverName; change url, add what the server needs, or remove tls"
// +kubebuilder:validation:XValidation:rule="!has(self.auth) || self.auth.type in ['Basic', 'Token']",fieldPath=".auth.type",message="type must be Basic or Token, as HTTP has them; choose one of these"
type SchemaRegistry struct {
	// url is an http or https URL, without user and password.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && self.matches('^https?://[^/?#:@][^?#@]*$')",message="url must be an http:// or https:// URL with a host and without a query, such as https://registry.example.com, and hold no user or password, because everybody may read it; put credentials into a Secret and name it in auth"
	URL string `json:"url,omitempty"`

	// auth is the login of every request, of type Basic or Token. When not set: none.
	// +optional
	Auth *Auth `json:"auth,omitempty"`

	// tls configures the certificates of an https url.
	// +optional
	TLS *TLS `json:"tls,omitempty"`

	// refresh is how long the latest version of a subject is cached. It is read again at once for an
	// event that does not fit. While the registry is unreachable the last known version is used. From
	// 1s to 24h. Defaults to 5m.
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="refresh must be a duration from 1s to 24h, such as 5m"
	Refresh Duration `json:"refresh,omitzero"`
}

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (r *SchemaRegistry) ApplyDefaults() {
	setDefault(&r.Refresh, Duration(5*time.Minute))
}
