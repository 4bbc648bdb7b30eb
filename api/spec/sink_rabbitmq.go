package spec

import (
	"fmt"
	"net"
	"strconv"
	"time"
)

// RabbitMQSink publishes CloudEvents 1.0 to an exchange of RabbitMQ by AMQP 0-9-1: persistent, mandatory,
// and each message confirmed by the broker.
type RabbitMQSink struct {
	// Addresses are host:port of nodes, 1 to 32. The first that lets the dispatcher in is used. Required.
	Addresses []string `json:"addresses"`
	// VHost is the virtual host. Defaults to /.
	VHost string `json:"vhost,omitempty"`
	// Exchange is where every event goes, at most 255 bytes. Defaults to the default exchange, whose
	// routing keys are the names of queues.
	Exchange string `json:"exchange,omitempty"`
	// RoutingKey is the routing key of every event, at most 255 bytes. Defaults to the name of the event's own topic.
	RoutingKey string `json:"routingKey,omitempty"`
	// AttributePrefix begins the names of the headers of contentMode Binary: ce- (the RabbitMQ binding of
	// CloudEvents), or cloudEvents: or cloudEvents_ (its AMQP 1.0 binding, for consumers that speak AMQP 1.0 with
	// RabbitMQ). Defaults to ce-.
	AttributePrefix string `json:"attributePrefix,omitempty"`
	// Channels is how many deliveries publish side by side, 1 to 64, on one connection. Defaults to 4.
	Channels int `json:"channels,omitempty"`
	// ConnectionName is what RabbitMQ lists the connection by, at most 255 bytes. Defaults to
	// outbox-dispatcher.
	ConnectionName string `json:"connectionName,omitempty"`
	// Heartbeat finds a connection dead after three times of it, 1s to 5m, in whole seconds. The
	// broker may request a shorter one. Defaults to 10s.
	Heartbeat Duration `json:"heartbeat,omitempty"`
	// Access is what the file has next to the kind: auth, tls and timeout of the sink.
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

func (s *RabbitMQSink) validate(p *problems) {
	p.when(len(s.Addresses) < 1 || len(s.Addresses) > 32, "sink.rabbitmq.addresses", "has %d entries; list 1 to 32 nodes, each as host:port", len(s.Addresses))
	for i, address := range s.Addresses {
		host, port, err := net.SplitHostPort(address)
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		p.when(err != nil || host == "" || len(address) > 261, fmt.Sprintf("sink.rabbitmq.addresses[%d]", i), "is %q; write it as host:port, such as rabbitmq.example:5672", address)
	}
	for field, value := range map[string]string{"vhost": s.VHost, "exchange": s.Exchange, "routingKey": s.RoutingKey, "connectionName": s.ConnectionName} {
		p.when(len(value) > 255, "sink.rabbitmq."+field, "has %d bytes, and RabbitMQ takes 255; shorten it", len(value))
	}
	s.contentModes(p, "rabbitmq", Binary, Structured)
	p.oneOf("sink.rabbitmq.attributePrefix", s.AttributePrefix, PrefixRabbitMQ, PrefixAMQP, PrefixAMQPUnderscore)
	p.number("sink.rabbitmq.channels", s.Channels, 1, 64)
	p.duration("sink.rabbitmq.heartbeat", s.Heartbeat, time.Second, 5*time.Minute)
	p.when(s.Heartbeat.D()%time.Second != 0, "sink.rabbitmq.heartbeat", "is %s; set it to whole seconds", s.Heartbeat.D())
	s.Access.validate(p, AuthPlain, AuthExternal)
	p.when(s.Auth == nil, "sink.auth", "is missing, and rabbitmq needs it; add it, with type Plain or External")
	p.when(s.Auth != nil && s.Auth.Type == AuthExternal && (s.TLS == nil || s.TLS.ClientCertFile == ""), "sink.tls.clientCertFile", "is missing, and sink.auth of type External needs it; set clientCertFile and clientKeyFile")
}

// Validate is what [Config.Validate] says of this section. It fails as that does.
func (s *RabbitMQSink) Validate() error { return validated(s) }
