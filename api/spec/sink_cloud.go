package spec

import "time"

// SQSSink sends CloudEvents 1.0 to a queue of Amazon SQS, each as one JSON object. Credentials come from
// the pods' environment: see spec.pods.serviceAccount.
type SQSSink struct {
	// queueURL is the queue's URL. Every event is sent there, unless a route says
	// otherwise.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self.matches('^https?://[A-Za-z0-9.-]+(:[1-9][0-9]{0,4})?(/[A-Za-z0-9._-]+)*/([A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}[.]fifo)$') && (url(self).getPort().size() != 5 || int(url(self).getPort()) <= 65535)",message="queueURL must be the URL of a queue, with a port up to 65535 and a name of at most 80 alphanumeric characters, dashes and underscores, and .fifo only at its end; copy the URL that SQS shows, such as https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
	QueueURL string `json:"queueURL,omitempty"`

	// region is the region of the queue. When not set: the one in queueURL, else
	// AWS_REGION in the environment of the pods.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z]{2,4}(-[a-z]+)+-[0-9]+$')",message="region must be the name of a region, such as eu-west-1"
	Region string `json:"region,omitempty"`

	// endpoint is the address of the service, in place of queueURL's host, such as a
	// VPC endpoint.
	// +optional
	Endpoint CloudEndpoint `json:"endpoint,omitempty"`

	// Access is what the object has next to the kind: auth, tls, content mode and timeout of the sink.
	Access `json:"-"`
}

// SNSSink publishes CloudEvents 1.0 to a topic of Amazon SNS, each as one JSON object. Credentials come
// from the pods' environment: see spec.pods.serviceAccount.
type SNSSink struct {
	// topicARN is the topic's ARN. Every event is sent there, unless a route says
	// otherwise.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:([A-Za-z0-9_-]{1,256}|[A-Za-z0-9_-]{1,251}[.]fifo)$')",message="topicARN must be the ARN of a topic, such as arn:aws:sns:eu-west-1:123456789012:orders"
	TopicARN string `json:"topicARN,omitempty"`

	// endpoint is the address of the service, in place of its region's, such as a VPC
	// endpoint.
	// +optional
	Endpoint CloudEndpoint `json:"endpoint,omitempty"`

	// Access is what the object has next to the kind: auth, tls, content mode and timeout of the sink.
	Access `json:"-"`
}

// PubSubSink publishes CloudEvents 1.0 to topics of Google Cloud Pub/Sub. Credentials come from the pods'
// environment: see spec.pods.serviceAccount.
type PubSubSink struct {
	// project is the id of the project that has the topics.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$')",message="project must be the id of a project, such as shop-production"
	Project string `json:"project,omitempty"`

	// topic receives every event, unless a route says otherwise. When not set: the
	// topic with the name of the event's own. Topics are never created.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z][A-Za-z0-9._~+%-]{2,254}$')",message="topic must be a name that Pub/Sub takes: 3 to 255 alphanumeric characters and -._~+%, the first one not a digit"
	Topic string `json:"topic,omitempty"`

	// endpoint is the address of the service, in place of
	// https://pubsub.googleapis.com: a region's address, or with http:// an emulator,
	// which gets no credentials.
	// +optional
	Endpoint CloudEndpoint `json:"endpoint,omitempty"`

	// Access is what the object has next to the kind: auth, tls, content mode and timeout of the sink.
	Access `json:"-"`
}

// ServiceBusSink sends CloudEvents 1.0 to queues or topics of Azure Service Bus. Credentials come from
// the pods' environment: see spec.pods.serviceAccount.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.queue) && has(self.topic))",message="serviceBus must not have both queue and topic; remove one of them"
type ServiceBusSink struct {
	// namespace is the host name of the namespace.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$')",message="namespace must be a host name, such as orders.servicebus.windows.net"
	Namespace string `json:"namespace,omitempty"`

	// queue receives every event, unless a route says otherwise. When neither queue
	// nor topic is set: the queue or topic with the name of the event's topic.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=260
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_]([A-Za-z0-9._/~-]{0,258}[A-Za-z0-9_])?$')",message="queue must be a name that Service Bus takes: alphanumeric characters and ._-/"
	Queue string `json:"queue,omitempty"`

	// topic receives every event, unless a route says otherwise.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=260
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_]([A-Za-z0-9._/~-]{0,258}[A-Za-z0-9_])?$')",message="topic must be a name that Service Bus takes: alphanumeric characters and ._-/"
	Topic string `json:"topic,omitempty"`

	// endpoint is the host of the connection, in place of namespace, with a port if it
	// is not 5671.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=260
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9.-]+(:[1-9][0-9]{0,4})?$') && (!self.contains(':') || int(self.substring(self.indexOf(':') + 1)) <= 65535)",message="endpoint must be host or host:port with a port up to 65535; write it so, such as 10.0.0.1:5671"
	Endpoint string `json:"endpoint,omitempty"`

	// Access is what the object has next to the kind: auth, tls, content mode and timeout of the sink.
	Access `json:"-"`
}

const cloudTimeout = Duration(10 * time.Second)

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (s *SQSSink) ApplyDefaults() { setDefault(&s.Timeout, cloudTimeout) }

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (s *SNSSink) ApplyDefaults() { setDefault(&s.Timeout, cloudTimeout) }

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (s *PubSubSink) ApplyDefaults() {
	setDefault(&s.ContentMode, Binary)
	setDefault(&s.Timeout, cloudTimeout)
}

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (s *ServiceBusSink) ApplyDefaults() {
	setDefault(&s.ContentMode, Binary)
	setDefault(&s.Timeout, cloudTimeout)
}

// CloudEndpoint is the URL of a host where a cloud's service is called.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=512
// +kubebuilder:validation:XValidation:rule="self.matches('^https?://[A-Za-z0-9.-]+(:[1-9][0-9]{0,4})?/?$') && (url(self).getPort().size() != 5 || int(url(self).getPort()) <= 65535)",message="endpoint must be an http:// or https:// URL of a host, without a path and with a port up to 65535; correct it"
type CloudEndpoint string
