package spec

import "time"

// RabbitMQSink publishes CloudEvents 1.0 to an exchange of RabbitMQ by AMQP 0-9-1. Messages are
// persistent and mandatory, and an event is delivered when the broker has confirmed it.
//
// +kubebuilder:validation:XValidation:rule="[self.vhost, has(self.exchange) ? self.exchange : self.vhost, has(self.routingKey) ? self.routingKey : self.vhost, self.connectionName].all(name, bytes(name).size() <= 255)",message="vhost, exchange, routingKey and connectionName must each have at most 255 bytes, as AMQP wants; shorten the one that has more"
type RabbitMQSink struct {
	// addresses are host:port of nodes, in the order in which they are tried: the
	// first that accepts the connection is used.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=261
	// +kubebuilder:validation:XValidation:rule="self.all(address, address.matches('^([A-Za-z0-9._-]+|\\\\[[0-9A-Fa-f:.]+\\\\]):[1-9][0-9]{0,4}$') && int(address.substring(address.lastIndexOf(':') + 1)) <= 65535)",message="addresses must each be host:port, such as rabbitmq.shop:5672"
	Addresses []string `json:"addresses,omitempty"`

	// vhost is the virtual host. Defaults to /.
	// +optional
	// +kubebuilder:default=/
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	VHost string `json:"vhost,omitempty"`

	// exchange receives every event. It is never declared. When not set: the default
	// exchange, whose routing keys are the names of queues.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Exchange string `json:"exchange,omitempty"`

	// routingKey is the routing key of every event, unless a route says otherwise.
	// When not set: the name of the event's topic.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	RoutingKey string `json:"routingKey,omitempty"`

	// attributePrefix is the prefix of headers in contentMode Binary: ce- (the
	// RabbitMQ binding of CloudEvents), or cloudEvents: or cloudEvents_ (its AMQP 1.0
	// binding, for consumers that use AMQP 1.0 with RabbitMQ). Defaults to ce-.
	// +optional
	// +kubebuilder:default=ce-
	// +kubebuilder:validation:Enum=ce-;"cloudEvents:";cloudEvents_
	AttributePrefix string `json:"attributePrefix,omitempty"`

	// channels is the number of channels on the connection, and so of deliveries that
	// publish concurrently. From 1 to 64. Defaults to 4.
	// +optional
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Channels int32 `json:"channels,omitempty"`

	// connectionName is the name of the connection in RabbitMQ. Defaults to
	// outbox-dispatcher.
	// +optional
	// +kubebuilder:default=outbox-dispatcher
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	ConnectionName string `json:"connectionName,omitempty"`

	// heartbeat is the interval of heartbeats; after three without a reply the
	// connection is closed. The broker may set a shorter one. Whole seconds from 1s to
	// 5m. Defaults to 10s.
	// +optional
	// +kubebuilder:default="10s"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+(s|m))+$') && duration(self) >= duration('1s') && duration(self) <= duration('5m')",message="heartbeat must be a duration of whole seconds from 1s to 5m, such as 10s"
	Heartbeat Duration `json:"heartbeat,omitzero"`

	// Access is what the object has next to the kind: auth, tls, content mode and timeout of the sink.
	Access `json:"-"`
}

// The prefixes of [RabbitMQSink.AttributePrefix].
const (
	PrefixRabbitMQ       = "ce-"
	PrefixAMQP           = "cloudEvents:"
	PrefixAMQPUnderscore = "cloudEvents_"
)

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (s *RabbitMQSink) ApplyDefaults() {
	setDefault(&s.VHost, "/")
	setDefault(&s.ContentMode, Binary)
	setDefault(&s.AttributePrefix, PrefixRabbitMQ)
	setDefault(&s.Channels, 4)
	setDefault(&s.ConnectionName, "outbox-dispatcher")
	setDefault(&s.Heartbeat, Duration(10*time.Second))
	setDefault(&s.Timeout, Duration(30*time.Second))
}
