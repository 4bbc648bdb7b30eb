package v1alpha1

// Sink is where events go: exactly one of its members.
//
// +kubebuilder:validation:XValidation:rule="[has(self.http), has(self.kafka), has(self.log), has(self.nats), has(self.postgres), has(self.pubsub), has(self.rabbitmq), has(self.redis), has(self.serviceBus), has(self.sns), has(self.sqs)].filter(set, set).size() == 1",message="sink must have exactly one of http, kafka, log, nats, postgres, pubsub, rabbitmq, redis, serviceBus, sns and sqs; add the one that events go to, or remove the others"
type Sink struct {
	// http posts CloudEvents 1.0 to a URL.
	// +optional
	HTTP *HTTPSink `json:"http,omitempty"`

	// kafka produces to topics of Apache Kafka, or of what speaks its protocol.
	// +optional
	Kafka *KafkaSink `json:"kafka,omitempty"`

	// log writes one JSON line per event to the pod's log, for trying things out.
	// +optional
	Log *LogSink `json:"log,omitempty"`

	// nats publishes to JetStream.
	// +optional
	NATS *NATSSink `json:"nats,omitempty"`

	// postgres inserts into the inbox table of another database, effectively once.
	// +optional
	Postgres *PostgresSink `json:"postgres,omitempty"`

	// pubsub publishes to a topic of Google Cloud Pub/Sub.
	// +optional
	PubSub *PubSubSink `json:"pubsub,omitempty"`

	// rabbitmq publishes to exchanges of RabbitMQ with confirms.
	// +optional
	RabbitMQ *RabbitMQSink `json:"rabbitmq,omitempty"`

	// redis adds to streams of Redis or Valkey.
	// +optional
	Redis *RedisSink `json:"redis,omitempty"`

	// serviceBus sends to a queue or topic of Azure Service Bus.
	// +optional
	ServiceBus *ServiceBusSink `json:"serviceBus,omitempty"`

	// sns publishes to a topic of Amazon SNS.
	// +optional
	SNS *SNSSink `json:"sns,omitempty"`

	// sqs sends to a queue of Amazon SQS.
	// +optional
	SQS *SQSSink `json:"sqs,omitempty"`
}

// TLS says whom to trust, and how to identify oneself. Empty, it trusts the system's roots.
type TLS struct {
	// ca is the key of a Secret that holds PEM certificates; they replace the
	// system's roots.
	// +optional
	CA *SecretKey `json:"ca,omitempty"`

	// clientCertificate names a Secret with the keys tls.crt and tls.key (type
	// kubernetes.io/tls).
	// +optional
	ClientCertificate *SecretName `json:"clientCertificate,omitempty"`

	// serverName is checked against the server's certificate instead of the host
	// that is connected to.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ServerName string `json:"serverName,omitempty"`
}

// LogSink writes one JSON line per event to the pod's log.
type LogSink struct {
	// payload includes the event's payload in the line. Defaults to false.
	// +optional
	// +kubebuilder:default=false
	Payload bool `json:"payload,omitempty"`
}
