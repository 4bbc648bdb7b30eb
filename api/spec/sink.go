package spec

import (
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Sink is the destination of events: exactly one kind, and how to reach it.
//
// +kubebuilder:validation:XValidation:rule="[has(self.copy), has(self.http), has(self.kafka), has(self.log), has(self.nats), has(self.postgres), has(self.pubSub), has(self.rabbitmq), has(self.redis), has(self.serviceBus), has(self.sns), has(self.sqs)].filter(set, set).size() == 1",message="sink must have exactly one of copy, http, kafka, log, nats, postgres, pubSub, rabbitmq, redis, serviceBus, sns and sqs; add the one that events go to, or remove the others"
// +kubebuilder:validation:XValidation:rule="has(self.auth) ? self.auth.type in (has(self.http) ? ['Basic', 'Token'] : has(self.kafka) ? ['Plain', 'ScramSHA256', 'ScramSHA512', 'OAuthBearer', 'AWSMSKIAM'] : has(self.nats) ? ['Basic', 'Token', 'NKey', 'Credentials'] : has(self.rabbitmq) ? ['Plain', 'External'] : has(self.redis) ? ['Basic', 'Password'] : []) : !has(self.rabbitmq)",fieldPath=".auth",message="auth must have the type Basic or Token for http; Plain, ScramSHA256, ScramSHA512, OAuthBearer or AWSMSKIAM for kafka; Basic, Token, NKey or Credentials for nats; Plain or External for rabbitmq, which needs auth; Basic or Password for redis; others have none; correct the type, or remove auth"
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || !(has(self.copy) || has(self.log) || has(self.pubSub) || has(self.serviceBus) || has(self.sns) || has(self.sqs))",fieldPath=".tls",message="tls is for http, kafka, nats, postgres, rabbitmq and redis; remove it"
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || !has(self.http) || self.http.url.startsWith('https://') && [has(self.tls.caSecretRef), has(self.tls.caConfigMapRef), has(self.tls.clientCertSecretRef), has(self.tls.serverName)].exists(set, set)",fieldPath=".tls",message="tls is for an https:// url, and must have caSecretRef, caConfigMapRef, clientCertSecretRef or serverName; change http.url, add what the server needs, or remove tls"
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || !has(self.postgres) || !has(self.tls.serverName) && [has(self.tls.caSecretRef), has(self.tls.caConfigMapRef), has(self.tls.clientCertSecretRef)].exists(set, set)",fieldPath=".tls",message="tls of postgres must have an authority or a client certificate, and no serverName, because the connection string says sslmode and host; add caSecretRef, caConfigMapRef or clientCertSecretRef, or remove tls"
// +kubebuilder:validation:XValidation:rule="!has(self.auth) || (self.auth.type == 'AWSMSKIAM' ? has(self.tls) : self.auth.type == 'External' ? has(self.tls) && has(self.tls.clientCertSecretRef) : true)",fieldPath=".tls",message="tls is needed by auth of type AWSMSKIAM, and tls.clientCertSecretRef by type External; add it"
// +kubebuilder:validation:XValidation:rule="!has(self.contentMode) || has(self.http) || self.contentMode != 'Batch' && [has(self.copy), has(self.log), has(self.postgres), has(self.sns), has(self.sqs)].all(set, !set)",fieldPath=".contentMode",message="contentMode is Batch for http alone, and none for copy, log, postgres, sns and sqs; choose Binary or Structured, or remove contentMode"
// +kubebuilder:validation:XValidation:rule="!has(self.http) || !has(self.http.batchSize) || self.?contentMode.orValue('Binary') == 'Batch'",fieldPath=".http.batchSize",message="batchSize belongs to contentMode Batch; set contentMode to Batch, or remove batchSize"
// +kubebuilder:validation:XValidation:rule="!has(self.kafka) || self.kafka.encoding == 'JSON' || self.?contentMode.orValue('Binary') == 'Binary'",fieldPath=".kafka.encoding",message="encoding Avro and Protobuf belong to contentMode Binary, because the payload must be the record's value; set contentMode to Binary, or encoding to JSON"
// +kubebuilder:validation:XValidation:rule="!has(self.timeout) || !has(self.log) && self.timeout.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self.timeout) >= duration(has(self.http) ? '10ms' : '100ms') && duration(self.timeout) <= duration('10m')",fieldPath=".timeout",message="timeout must be a duration from 100ms (http: 10ms) to 10m, such as 10s; log has none"
// +kubebuilder:validation:XValidation:rule="!has(self.routes) || self.routes.size() == 0 || !(has(self.copy) || has(self.log) || has(self.postgres))",fieldPath=".routes",message="routes are for sinks that have several destinations, and copy, log and postgres have none to choose from; remove routes, or choose another sink"
// +kubebuilder:validation:XValidation:rule="!has(self.routes) || self.routes.map(r, has(r.topics) && r.topics.size() > 0).indexOf(false) in [-1, self.routes.size() - 1]",fieldPath=".routes",message="routes must have the one without topics last, because it takes all that is left; move it to the end"
type Sink struct {
	// copy copies events to other topics of their namespace, for several destinations.
	// +optional
	Copy *CopySink `json:"copy,omitempty"`

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

	// auth is the login, for http, kafka (SASL), nats, rabbitmq, which needs it, and
	// redis. When not set: connections have none.
	// +optional
	Auth *Auth `json:"auth,omitempty"`

	// tls are certificates, for http, kafka, nats, postgres, rabbitmq and redis. For
	// kafka, nats, rabbitmq and redis it turns on TLS, also when it is empty; then the
	// system roots are trusted. For http and postgres, url and connection string say
	// whether there is TLS.
	// +optional
	TLS *TLS `json:"tls,omitempty"`

	// contentMode is how a message holds an event: Binary (attributes as headers, the
	// payload as body), Structured (one JSON object) or, for http, Batch (a JSON array
	// of several events). Not for copy, log, postgres, sns and sqs. When not set:
	// Binary.
	// +optional
	ContentMode ContentMode `json:"contentMode,omitempty"`

	// routes choose the destination in the sink by topic; the first route that has the
	// topic is used. Not for copy, log and postgres. With routes, the attempts of an
	// event whose topic has no route fail, and the event is dead after maxAttempts.
	// When not set: the sink's own setting, else the name of the topic.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Routes []Route `json:"routes,omitempty"`

	// timeout bounds a delivery: for http one request; for kafka all its retries, as
	// delivery.timeout.ms does; for nats also the set-up of a connection. From 100ms
	// (http: 10ms) to 10m. When not set: 30s for kafka, postgres and rabbitmq, 10s for
	// the others. Not for log.
	// +optional
	Timeout Duration `json:"timeout,omitzero"`
}

// Access is how to reach a destination: what a [Sink] says next to its kind. [Sink.ApplyDefaults] hands it to the kind.
type Access struct {
	Auth        *Auth
	TLS         *TLS
	ContentMode ContentMode
	Timeout     Duration
}

func (a *Access) access() *Access { return a }

// ApplyDefaults sets the fields that are not set to the defaults in their comments, and hands auth, tls,
// contentMode and timeout to the kind that is set.
func (s *Sink) ApplyDefaults() {
	for _, m := range s.members() {
		*m.access() = Access{s.Auth, s.TLS, s.ContentMode, s.Timeout}
		m.ApplyDefaults()
		s.ContentMode, s.Timeout = m.access().ContentMode, m.access().Timeout
	}
}

// LogSink writes one JSON line per event to the pod's log.
type LogSink struct {
	// payload is Omit or Include, which writes the event's payload into the line.
	// Defaults to Omit.
	// +optional
	// +kubebuilder:default=Omit
	Payload LogPayload `json:"payload,omitempty"`

	// Access is what the object has next to the kind: auth, tls, content mode and timeout of the sink.
	Access `json:"-"`
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

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (l *LogSink) ApplyDefaults() { setDefault(&l.Payload, LogPayloadOmit) }

// member is one kind of sink.
type member interface {
	ApplyDefaults()
	access() *Access
}

// SinkKinds are the fields of [Sink] that are kinds of sinks.
func SinkKinds() (kinds []reflect.StructField) {
	for field := range reflect.TypeFor[Sink]().Fields() {
		if field.Type.Implements(reflect.TypeFor[member]()) {
			kinds = append(kinds, field)
		}
	}
	return kinds
}

// members are the kinds that are set, by the names of their fields.
func (s Sink) members() map[string]member {
	set := map[string]member{}
	for _, kind := range SinkKinds() {
		if m := reflect.ValueOf(s).FieldByIndex(kind.Index); !m.IsNil() {
			name, _, _ := strings.Cut(kind.Tag.Get("json"), ",")
			set[name] = m.Interface().(member)
		}
	}
	return set
}

// Kind is the name of the kind that is set, such as http; of several, the first by name.
func (s Sink) Kind() string {
	for _, name := range slices.Sorted(maps.Keys(s.members())) {
		return name
	}
	return ""
}

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

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
