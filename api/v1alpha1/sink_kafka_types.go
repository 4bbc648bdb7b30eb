package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KafkaSink produces CloudEvents 1.0 to topics of Apache Kafka, or of a server with the same protocol. An event is
// delivered when all in-sync replicas have it (acks=all, an idempotent producer).
//
// +kubebuilder:validation:XValidation:rule="!has(self.auth) || self.auth.mechanism != 'AWS_MSK_IAM' || has(self.tls)",fieldPath=".tls",message="tls is needed by auth.mechanism AWS_MSK_IAM; add it, empty for the system's roots"
// +kubebuilder:validation:XValidation:rule="self.encoding == 'JSON' || self.contentMode == 'Binary'",fieldPath=".encoding",message="encoding Avro and Protobuf belong to contentMode Binary, because the payload must be the record's value; set contentMode to Binary, or encoding to JSON"
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

	// contentMode is how an event is put into a record, as the CloudEvents Kafka binding
	// names it: Binary (attributes as headers, the payload as value) or Structured
	// (one JSON object). Defaults to Binary.
	// +optional
	// +kubebuilder:default=Binary
	// +kubebuilder:validation:Enum=Binary;Structured
	ContentMode ContentMode `json:"contentMode,omitempty"`

	// encoding is the encoding of the payload as a record's value: JSON (unchanged),
	// Avro or Protobuf, by the latest schema of subject in schemaRegistry, in
	// Confluent's wire format. An event that does not fit the schema is dead at once.
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

	// compression is none, gzip, snappy, lz4 or zstd. Defaults to snappy.
	// +optional
	// +kubebuilder:default=snappy
	// +kubebuilder:validation:Enum=none;gzip;snappy;lz4;zstd
	Compression string `json:"compression,omitempty"`

	// maxMessageBytes bounds a batch of records before compression, and so a record.
	// At most the topic's max.message.bytes. From 1024 to 104857600. Defaults to
	// 1000000.
	// +optional
	// +kubebuilder:default=1000000
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=104857600
	MaxMessageBytes int32 `json:"maxMessageBytes,omitempty"`

	// timeout bounds a delivery with all its retries, as delivery.timeout.ms does.
	// From 100ms to 10m. Defaults to 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('100ms') && duration(self) <= duration('10m')",message="timeout must be a duration from 100ms to 10m, such as 30s"
	Timeout metav1.Duration `json:"timeout,omitzero"`

	// auth is the login (SASL). When not set: connections have none.
	// +optional
	Auth *KafkaAuth `json:"auth,omitempty"`

	// tls turns on TLS, also when it is empty; then the system roots are trusted.
	// +optional
	TLS *TLS `json:"tls,omitempty"`
}

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

// KafkaAuth is a login: a mechanism, and the member that it needs.
//
// +kubebuilder:validation:XValidation:rule="has(self.basic) == (self.mechanism in ['PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512'])",fieldPath=".basic",message="basic belongs to the mechanisms PLAIN and SCRAM, which need it; name the Secret with user and password, or choose another mechanism"
// +kubebuilder:validation:XValidation:rule="has(self.token) == (self.mechanism == 'OAUTHBEARER')",fieldPath=".token",message="token belongs to the mechanism OAUTHBEARER, which needs it; name the Secret's key, or choose another mechanism"
type KafkaAuth struct {
	// mechanism is PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM
	// (with the pod's identity, IAM Roles for Service Accounts or EKS Pod Identity, or
	// with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of its environment: see
	// podTemplate).
	// +required
	// +kubebuilder:validation:Enum=PLAIN;SCRAM-SHA-256;SCRAM-SHA-512;OAUTHBEARER;AWS_MSK_IAM
	Mechanism string `json:"mechanism,omitempty"`

	// basic is a user and a password, for PLAIN and SCRAM.
	// +optional
	Basic *BasicAuth `json:"basic,omitempty"`

	// token is the key of a Secret that holds a token, for OAUTHBEARER. The dispatcher
	// does not renew it.
	// +optional
	Token *SecretKey `json:"token,omitempty"`
}
