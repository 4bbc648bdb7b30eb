package v1alpha1

// Route says where in the sink the events of some topics go.
type Route struct {
	// topics are the topics that the route takes. Empty means all that no route
	// before it takes; then it must be the last.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	Topics []string `json:"topics,omitempty"`

	// to is a CEL expression that makes a string: a Kafka topic, a NATS subject, a
	// RabbitMQ routing key, a Redis stream, an HTTP path, or the name of a queue or
	// topic of the same account and region (sqs, sns), project (pubSub) or namespace
	// (serviceBus). It sees event.namespace, event.topic, event.type, event.tenant,
	// event.aggregateType, event.aggregateId, event.partitionKey, event.headers,
	// event.id, event.dedupeKey, event.key, event.sequence, event.createdAt,
	// event.attempt, event.token and event.aggregateSequence, such as '"shop." + event.headers.?region.orValue("eu")'.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	To string `json:"to,omitempty"`
}

// Transformation changes the payload of some events before it leaves. The row stays as it is.
type Transformation struct {
	// types are the event types that it is for. One that ends with * is for all types
	// that begin so, such as order.*. Empty means all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	Types []string `json:"types,omitempty"`

	// payload is a CEL expression over event and payload that makes the new payload,
	// a map, such as 'without(payload, ["card", "customer.email"])'. Functions
	// beside CEL's own are without, mask and with.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Payload string `json:"payload,omitempty"`
}
