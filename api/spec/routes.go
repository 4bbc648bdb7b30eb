package spec

// Route chooses the destination in the sink for the events of some topics.
type Route struct {
	// topics are the topics of the route. Empty means all that no earlier route has;
	// such a route must be the last.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	Topics []string `json:"topics,omitempty"`

	// to is a CEL expression that returns a string: a Kafka topic, a NATS subject, a
	// RabbitMQ routing key, a Redis stream, an HTTP path, or the name of a queue or
	// topic of the same account and region (sqs, sns), project (pubSub) or namespace
	// (serviceBus). Its variables are event.namespace, event.topic, event.type,
	// event.tenant, event.aggregateType, event.aggregateId, event.partitionKey,
	// event.headers, event.id, event.dedupeKey, event.key, event.sequence,
	// event.createdAt, event.attempt, event.token and event.aggregateSequence, such as
	// '"shop." + event.headers.?region.orValue("eu")'.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	To string `json:"to,omitempty"`
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

var unrouted = []string{"log", "postgres"}
