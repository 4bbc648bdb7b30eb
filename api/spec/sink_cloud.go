package spec

import (
	"net/url"
	"strconv"
	"strings"
	"time"
)

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

const (
	awsRegion         = pattern(`^[a-z]{2,4}(-[a-z]+)+-[0-9]+$`)
	sqsQueueURL       = pattern(`^https?://[A-Za-z0-9.-]+(:[1-9][0-9]{0,4})?(/[A-Za-z0-9._-]+)+$`)
	snsTopicARN       = pattern(`^arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:([A-Za-z0-9_-]{1,256}|[A-Za-z0-9_-]{1,251}\.fifo)$`)
	cloudEndpoint     = pattern(`^https?://[A-Za-z0-9.-]+(:[1-9][0-9]{0,4})?/?$`)
	googleProject     = pattern(`^([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$`)
	pubsubTopic       = pattern(`^[A-Za-z][A-Za-z0-9._~+%-]{2,254}$`)
	serviceBusHost    = pattern(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`)
	serviceBusEntity  = pattern(`^[A-Za-z0-9_]([A-Za-z0-9._/~-]{0,258}[A-Za-z0-9_])?$`)
	serviceBusAddress = pattern(`^[A-Za-z0-9.-]+(:[1-9][0-9]{0,4})?$`)
)

func (s *SQSSink) validate(p *problems) {
	s.validateTimeout(p)
	s.unused(p, "sqs")
	s.contentModes(p, "sqs")
	good := sqsQueueURL.matches(s.QueueURL) && len(s.QueueURL) <= 2048
	p.when(!good, "sink.sqs.queueURL", "must be the URL of a queue, such as https://sqs.eu-west-1.amazonaws.com/123456789012/orders")
	p.port("sink.sqs.queueURL", s.QueueURL)
	p.when(s.Region != "" && !awsRegion.matches(s.Region), "sink.sqs.region", "is %q; write a region such as eu-west-1", s.Region)
	p.endpoint("sink.sqs.endpoint", s.Endpoint)
}

func (s *SNSSink) validate(p *problems) {
	s.validateTimeout(p)
	s.unused(p, "sns")
	s.contentModes(p, "sns")
	p.when(!snsTopicARN.matches(s.TopicARN), "sink.sns.topicARN", "must be the ARN of a topic, such as arn:aws:sns:eu-west-1:123456789012:orders")
	p.endpoint("sink.sns.endpoint", s.Endpoint)
}

func (s *PubSubSink) validate(p *problems) {
	s.validateTimeout(p)
	s.unused(p, "pubSub")
	p.when(!googleProject.matches(s.Project), "sink.pubSub.project", "must be the id of a project, such as shop-production")
	p.when(s.Topic != "" && !pubsubTopic.matches(s.Topic), "sink.pubSub.topic", "is %q, which Pub/Sub does not take; use 3 to 255 alphanumeric characters and -._~+%%, the first one not a digit", s.Topic)
	s.contentModes(p, "pubSub", Binary, Structured)
	p.endpoint("sink.pubSub.endpoint", s.Endpoint)
}

func (s *ServiceBusSink) validate(p *problems) {
	s.validateTimeout(p)
	s.unused(p, "serviceBus")
	p.when(len(s.Namespace) > 253 || !serviceBusHost.matches(s.Namespace), "sink.serviceBus.namespace", "must be a host name, such as orders.servicebus.windows.net")
	p.when(s.Queue != "" && s.Topic != "", "sink.serviceBus", "has queue and topic; keep one of them")
	p.when(s.Queue != "" && !serviceBusEntity.matches(s.Queue), "sink.serviceBus.queue", "is %q, which Service Bus does not take; use at most 260 alphanumeric characters and ._-/", s.Queue)
	p.when(s.Topic != "" && !serviceBusEntity.matches(s.Topic), "sink.serviceBus.topic", "is %q, which Service Bus does not take; use at most 260 alphanumeric characters and ._-/", s.Topic)
	s.contentModes(p, "serviceBus", Binary, Structured)
	_, port, ported := strings.Cut(s.Endpoint, ":")
	_, err := strconv.ParseUint(port, 10, 16)
	p.when(s.Endpoint != "" && (!serviceBusAddress.matches(s.Endpoint) || ported && err != nil), "sink.serviceBus.endpoint", "is %q; write it as host or host:port, with a port up to 65535", s.Endpoint)
}

// endpoint is a URL without a path.
func (p *problems) endpoint(field string, at CloudEndpoint) {
	text := string(at)
	if text == "" {
		return
	}
	p.when(!cloudEndpoint.matches(text) || len(text) > 512, field, "must be an http:// or https:// URL of a host, such as https://vpce-1a2b.sqs.eu-west-1.vpce.amazonaws.com")
	p.port(field, text)
}

// port returns the port of a URL, if it has one.
func (p *problems) port(field, text string) {
	u, err := url.Parse(text)
	if err != nil || u.Port() == "" {
		return
	}
	_, err = strconv.ParseUint(u.Port(), 10, 16)
	p.when(err != nil, field, "must have a port up to 65535; correct it, or leave it out")
}

// Validate is what [Config.Validate] says of this section. It fails as that does.
func (s *SQSSink) Validate() error { return validated(s) }

// Validate is what [Config.Validate] says of this section. It fails as that does.
func (s *SNSSink) Validate() error { return validated(s) }

// Validate is what [Config.Validate] says of this section. It fails as that does.
func (s *PubSubSink) Validate() error { return validated(s) }

// Validate is what [Config.Validate] says of this section. It fails as that does.
func (s *ServiceBusSink) Validate() error { return validated(s) }

// CloudEndpoint is the URL of a host where a cloud's service is called.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=512
// +kubebuilder:validation:XValidation:rule="self.matches('^https?://[A-Za-z0-9.-]+(:[1-9][0-9]{0,4})?/?$') && (url(self).getPort().size() != 5 || int(url(self).getPort()) <= 65535)",message="endpoint must be an http:// or https:// URL of a host, without a path and with a port up to 65535; correct it"
type CloudEndpoint string
