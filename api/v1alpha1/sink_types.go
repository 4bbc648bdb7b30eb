package v1alpha1

// Sink is the destination of events: exactly one of its members.
//
// +kubebuilder:validation:XValidation:rule="[has(self.http), has(self.kafka), has(self.log), has(self.nats), has(self.postgres), has(self.pubSub), has(self.rabbitmq), has(self.redis), has(self.serviceBus), has(self.sns), has(self.sqs)].filter(set, set).size() == 1",message="sink must have exactly one of http, kafka, log, nats, postgres, pubSub, rabbitmq, redis, serviceBus, sns and sqs; add the one that events go to, or remove the others"
type Sink struct {
	// http posts CloudEvents 1.0 to a URL.
	// +optional
	HTTP *HTTPSink `json:"http,omitempty"`

	// kafka produces to topics of Apache Kafka, or of a server with the same protocol.
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

	// pubSub publishes to a topic of Google Cloud Pub/Sub.
	// +optional
	PubSub *PubSubSink `json:"pubSub,omitempty"`

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

// LogSink writes one JSON line per event to the pod's log.
type LogSink struct {
	// payload is Omit or Include, which writes the event's payload into the line.
	// Defaults to Omit.
	// +optional
	// +kubebuilder:default=Omit
	Payload LogPayload `json:"payload,omitempty"`
}

// LogPayload says whether payloads are logged.
// +kubebuilder:validation:Enum=Omit;Include
type LogPayload string

const (
	// LogPayloadOmit leaves payloads out.
	LogPayloadOmit LogPayload = "Omit"
	// LogPayloadInclude writes them.
	LogPayloadInclude LogPayload = "Include"
)
