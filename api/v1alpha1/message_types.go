package v1alpha1

import (
	"github.com/outbox-operator/outbox-operator/api/spec"
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
	Format spec.MessageFormat `json:"format,omitempty"`

	// headers are computed for each event. They are added to those of the format, and
	// replace those of the same name. Not for contentMode Batch, whose requests have
	// several events. At most two for sqs and sns with format CloudEvents, and ten
	// with another, among them those of format Storage.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a.name.lowerAscii() == b.name.lowerAscii()))",message="headers must not name a header twice, in whatever case; remove one of the two"
	Headers []spec.MessageHeader `json:"headers,omitempty"`

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
	Transform []spec.Transformation `json:"transform,omitempty"`

	// schemaRegistry is the registry of the schemas that encoding and validation name.
	// When not set: none.
	// +optional
	SchemaRegistry *SchemaRegistry `json:"schemaRegistry,omitempty"`
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
	Refresh spec.Duration `json:"refresh,omitzero"`
}
