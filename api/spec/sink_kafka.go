package spec

import "time"

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
