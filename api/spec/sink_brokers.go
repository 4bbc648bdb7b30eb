package spec

import (
	"strings"
	"time"
	"unicode/utf8"
)

// KafkaEncoding is the encoding of the payload.
// +kubebuilder:validation:Enum=JSON;Avro;Protobuf
type KafkaEncoding string

const (
	// KafkaJSON leaves the payload as it is.
	KafkaJSON KafkaEncoding = "JSON"
	// KafkaAvro makes it Avro's binary form.
	KafkaAvro KafkaEncoding = "Avro"
	// KafkaProtobuf makes it Protobuf's binary form.
	KafkaProtobuf KafkaEncoding = "Protobuf"
)

// KafkaCompression is how batches of records are compressed.
// +kubebuilder:validation:Enum=None;Gzip;Snappy;LZ4;Zstd
type KafkaCompression string

// Values of [KafkaCompression].
const (
	CompressionNone   KafkaCompression = "None"
	CompressionGzip   KafkaCompression = "Gzip"
	CompressionSnappy KafkaCompression = "Snappy"
	CompressionLZ4    KafkaCompression = "LZ4"
	CompressionZstd   KafkaCompression = "Zstd"
)

// KafkaSink produces CloudEvents 1.0 to topics of Apache Kafka, or of a server with the same protocol. An event is
// delivered when all in-sync replicas have it (acks=all, an idempotent producer).
//
// +kubebuilder:validation:XValidation:rule="!has(self.subject) || self.encoding != 'JSON'",fieldPath=".subject",message="subject belongs to encoding Avro and Protobuf; choose one of them, or remove subject"
type KafkaSink struct {
	// brokers are host:port of some brokers; these report the others.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=261
	// +kubebuilder:validation:XValidation:rule="self.all(broker, broker.matches('^([A-Za-z0-9._-]+|\\\\[[0-9A-Fa-f:.]+\\\\]):[1-9][0-9]{0,4}$') && int(broker.substring(broker.lastIndexOf(':') + 1)) <= 65535)",message="brokers must each be host:port, such as kafka-0.kafka:9092"
	Brokers []string `json:"brokers,omitempty"`

	// topic receives every event, unless a route says otherwise. When not set: the
	// topic with the name of the event's own. Topics are never created.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=249
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._-]+$') && self != '.' && self != '..'",message="topic must be a name that Kafka takes: alphanumeric characters, dots, dashes and underscores"
	Topic string `json:"topic,omitempty"`

	// encoding is the encoding of the payload as a record's value: JSON (unchanged),
	// Avro or Protobuf, by the latest schema of subject in schemaRegistry, in
	// Confluent's wire format. An event that does not fit the schema is dead at once, after it was read again.
	// Defaults to JSON.
	// +optional
	// +kubebuilder:default=JSON
	Encoding KafkaEncoding `json:"encoding,omitempty"`

	// subject is the subject of the schema registry, for encoding Avro and Protobuf.
	// When not set: the name of the Kafka topic and -value.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Subject string `json:"subject,omitempty"`

	// clientID is the name of the dispatcher in the brokers' logs, quotas and metrics.
	// Defaults to outbox-dispatcher.
	// +optional
	// +kubebuilder:default=outbox-dispatcher
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	ClientID string `json:"clientID,omitempty"`

	// compression is None, Gzip, Snappy, LZ4 or Zstd. Defaults to Snappy.
	// +optional
	// +kubebuilder:default=Snappy
	Compression KafkaCompression `json:"compression,omitempty"`

	// maxMessageBytes bounds a batch of records before compression, and so a record.
	// At most the topic's max.message.bytes. From 1024 to 104857600. Defaults to
	// 1000000.
	// +optional
	// +kubebuilder:default=1000000
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=104857600
	MaxMessageBytes int32 `json:"maxMessageBytes,omitempty"`

	// Access is what the object has next to the kind: auth, tls, content mode and timeout of the sink.
	Access `json:"-"`
}

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (k *KafkaSink) ApplyDefaults() {
	setDefault(&k.ContentMode, Binary)
	setDefault(&k.Encoding, KafkaJSON)
	setDefault(&k.ClientID, "outbox-dispatcher")
	setDefault(&k.Compression, CompressionSnappy)
	setDefault(&k.MaxMessageBytes, 1_000_000)
	setDefault(&k.Timeout, Duration(30*time.Second))
}

// NATSSink publishes CloudEvents 1.0 to streams of NATS JetStream. An event is delivered when its
// stream confirms that it is stored.
type NATSSink struct {
	// servers are nats://host:port or tls://host:port of the servers; each connection
	// takes one at random. One tls:// turns on TLS for all connections.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=270
	// +kubebuilder:validation:XValidation:rule="self.all(server, server.matches('^(nats|tls)://([A-Za-z0-9._-]+|\\\\[[0-9A-Fa-f:.]+\\\\]):[1-9][0-9]{0,4}$') && int(server.substring(server.lastIndexOf(':') + 1)) <= 65535)",message="servers must each be nats://host:port or tls://host:port, such as nats://nats:4222; put a user and password into a Secret and name it in sink.auth"
	Servers []string `json:"servers,omitempty"`

	// subject receives every event, unless a route says otherwise. When not set: the
	// subject with the name of the event's topic. A stream must capture it: streams
	// are never created.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^[:space:][:cntrl:].*>]+([.][^[:space:][:cntrl:].*>]+)*$') && !self.startsWith('$') && !self.startsWith('_INBOX.')",message="subject must be words with dots between them, without spaces and wildcards, and none of the servers' own, which start with $ or _INBOX; correct it"
	Subject string `json:"subject,omitempty"`

	// stream is the stream that must capture the subject; delivery to another one
	// fails. When not set: any stream.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^[:space:][:cntrl:].*>/\\\\\\\\]+$')",message="stream must be a name that a stream can have: no spaces, dots, wildcards and slashes"
	Stream string `json:"stream,omitempty"`

	// Access is what the object has next to the kind: auth, tls, content mode and timeout of the sink.
	Access `json:"-"`
}

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (n *NATSSink) ApplyDefaults() {
	setDefault(&n.ContentMode, Binary)
	setDefault(&n.Timeout, Duration(10*time.Second))
}

// ValidNATSSubject reports whether events may go to the subject: at most 255 characters, no wildcards, and
// none of the servers' own.
func ValidNATSSubject(subject string) bool {
	return subject != "" && utf8.RuneCountInString(subject) <= 255 &&
		!strings.HasPrefix(subject, ".") && !strings.HasSuffix(subject, ".") && !strings.Contains(subject, "..") &&
		!strings.HasPrefix(subject, "$") && !strings.HasPrefix(subject, "_INBOX.") &&
		!strings.ContainsFunc(subject, func(r rune) bool { return r <= ' ' || r == 0x7F || r == '*' || r == '>' })
}

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

// RedisSink adds CloudEvents 1.0 to streams of Redis, of Valkey, or of a server with the same protocol. An event is
// delivered when the server has responded; how durable that is depends on its persistence (appendonly, appendfsync).
//
// +kubebuilder:validation:XValidation:rule="self.topology == 'Cluster' ? !has(self.database) || self.database == 0 : self.addresses.size() == 1",message="redis must have one entry in addresses unless topology is Cluster, which has only the database 0; set topology to Cluster, keep one address, or remove database"
// +kubebuilder:validation:XValidation:rule="!has(self.stream) || bytes(self.stream).size() <= 256",fieldPath=".stream",message="stream must have at most 256 bytes, of which some characters have several; shorten it"
type RedisSink struct {
	// addresses are host:port of the server, or of some nodes of a cluster; these
	// report the others.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=261
	// +kubebuilder:validation:XValidation:rule="self.all(address, address.matches('^([A-Za-z0-9._-]+|\\\\[[0-9A-Fa-f:.]+\\\\]):[1-9][0-9]{0,4}$') && int(address.substring(address.lastIndexOf(':') + 1)) <= 65535)",message="addresses must each be host:port, such as redis:6379"
	Addresses []string `json:"addresses,omitempty"`

	// topology is Standalone (one server) or Cluster. Defaults to Standalone.
	// +optional
	// +kubebuilder:default=Standalone
	Topology RedisTopology `json:"topology,omitempty"`

	// stream is the key that every event is added to, unless a route says otherwise.
	// When not set: the stream with the name of the event's topic.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Stream string `json:"stream,omitempty"`

	// maxLen is the approximate number of entries that a stream keeps (MAXLEN ~); the
	// oldest are removed, read or not. From 1 to 1000000000000. When not set: all are
	// kept.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000000
	MaxLen int64 `json:"maxLen,omitempty"`

	// replicas is the number of replicas that must have an event before it counts as
	// delivered (WAIT). From 0 to 100. Defaults to 0.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Replicas int32 `json:"replicas,omitempty"`

	// database is the number of the database. From 0 to 65535. When not set: 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	Database int32 `json:"database,omitempty"`

	// Access is what the object has next to the kind: auth, tls, content mode and timeout of the sink.
	Access `json:"-"`
}

// RedisTopology is how the servers are arranged.
// +kubebuilder:validation:Enum=Standalone;Cluster
type RedisTopology string

const (
	// RedisStandalone is one server.
	RedisStandalone RedisTopology = "Standalone"
	// RedisCluster are the nodes of a cluster.
	RedisCluster RedisTopology = "Cluster"
)

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (r *RedisSink) ApplyDefaults() {
	setDefault(&r.Topology, RedisStandalone)
	setDefault(&r.ContentMode, Binary)
	setDefault(&r.Timeout, Duration(10*time.Second))
}
