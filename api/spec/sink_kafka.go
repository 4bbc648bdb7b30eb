package spec

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// KafkaEncoding is what the payload becomes as a record's value.
type KafkaEncoding string

// Values of [KafkaEncoding].
const (
	KafkaJSON     KafkaEncoding = "JSON"
	KafkaAvro     KafkaEncoding = "Avro"
	KafkaProtobuf KafkaEncoding = "Protobuf"
)

// KafkaCompression is how batches of records are compressed.
type KafkaCompression string

// Values of [KafkaCompression].
const (
	CompressionNone   KafkaCompression = "None"
	CompressionGzip   KafkaCompression = "Gzip"
	CompressionSnappy KafkaCompression = "Snappy"
	CompressionLZ4    KafkaCompression = "LZ4"
	CompressionZstd   KafkaCompression = "Zstd"
)

// KafkaSink produces CloudEvents 1.0 to topics of Apache Kafka, or of what speaks its protocol. Every
// record is confirmed by all in-sync replicas (acks=all, an idempotent producer).
type KafkaSink struct {
	// Brokers are host:port of some brokers, 1 to 32; the others are found through them. Required.
	Brokers []string `json:"brokers"`
	// Topic is where every event goes. Defaults to the topic of the event's own name.
	Topic string `json:"topic,omitempty"`
	// Encoding is JSON (the payload as it is), Avro or Protobuf (by the latest schema of subject in
	// schemaRegistry, in Confluent's wire format; for contentMode Binary). Defaults to JSON.
	Encoding KafkaEncoding `json:"encoding,omitempty"`
	// Subject is the schema registry's, for Avro and Protobuf, at most 255 characters. Defaults to the
	// Kafka topic's name and -value.
	Subject string `json:"subject,omitempty"`
	// ClientID is what the brokers' logs, quotas and metrics know the dispatcher by, at most 255
	// characters. Defaults to outbox-dispatcher.
	ClientID string `json:"clientID,omitempty"`
	// Compression is None, Gzip, Snappy, LZ4 or Zstd. Defaults to Snappy.
	Compression KafkaCompression `json:"compression,omitempty"`
	// MaxMessageBytes bounds a batch of records before compression, and so a record: 1024 to
	// 104857600. No more than the topic's max.message.bytes. Defaults to 1000000.
	MaxMessageBytes int `json:"maxMessageBytes,omitempty"`
	// Access is what the file has next to the kind: auth, tls and timeout of the sink.
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

const (
	kafkaBroker = pattern(`^([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[1-9][0-9]{0,4}$`)
	kafkaTopic  = pattern(`^[A-Za-z0-9._-]{1,249}$`)
)

func (k *KafkaSink) validate(p *problems) {
	p.when(len(k.Brokers) < 1 || len(k.Brokers) > 32, "sink.kafka.brokers", "has %d entries; list 1 to 32 brokers, each as host:port", len(k.Brokers))
	for i, broker := range k.Brokers {
		_, err := strconv.ParseUint(broker[strings.LastIndexByte(broker, ':')+1:], 10, 16)
		p.when(err != nil || !kafkaBroker.matches(broker) || len(broker) > 261, fmt.Sprintf("sink.kafka.brokers[%d]", i), "is %q; write it as host:port, such as kafka-0.kafka:9092", broker)
	}
	bad := k.Topic == "." || k.Topic == ".." || !kafkaTopic.matches(k.Topic)
	p.when(k.Topic != "" && bad, "sink.kafka.topic", "is %q, which Kafka does not take; use at most 249 alphanumeric characters, dots, dashes and underscores", k.Topic)
	k.contentModes(p, "kafka", Binary, Structured)
	p.oneOf("sink.kafka.encoding", string(k.Encoding), string(KafkaJSON), string(KafkaAvro), string(KafkaProtobuf))
	p.when(k.Encoding != KafkaJSON && k.ContentMode != Binary, "sink.kafka.encoding", "is %s, which belongs to contentMode Binary, because the payload must be the record's value; set contentMode to Binary, or encoding to JSON", k.Encoding)
	p.when(k.Encoding == KafkaJSON && k.Subject != "", "sink.kafka.subject", "belongs to encoding Avro and Protobuf; choose one of them, or remove subject")
	p.when(utf8.RuneCountInString(k.Subject) > 255, "sink.kafka.subject", "has more than 255 characters; shorten it")
	p.when(utf8.RuneCountInString(k.ClientID) > 255, "sink.kafka.clientID", "has more than 255 characters; shorten it")
	p.oneOf("sink.kafka.compression", string(k.Compression), string(CompressionNone), string(CompressionGzip), string(CompressionSnappy), string(CompressionLZ4), string(CompressionZstd))
	p.number("sink.kafka.maxMessageBytes", k.MaxMessageBytes, 1024, 100<<20)
	k.Access.validate(p, AuthPlain, AuthScramSHA256, AuthScramSHA512, AuthOAuthBearer, AuthAWSMSKIAM)
	p.when(k.Auth != nil && k.Auth.Type == AuthAWSMSKIAM && k.TLS == nil, "sink.tls", "is missing, and sink.auth of type AWSMSKIAM needs it; add it, empty for the system's authorities")
}

// Validate is what [Config.Validate] says of this section. It fails as that does.
func (k *KafkaSink) Validate() error { return validated(k) }
