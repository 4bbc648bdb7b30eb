package spec

import (
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Sink is where events go: exactly one kind, and how to reach it.
//
// +kubebuilder:object:generate=false
type Sink struct {
	HTTP       *HTTPSink       `json:"http,omitempty"`
	Kafka      *KafkaSink      `json:"kafka,omitempty"`
	Log        *LogSink        `json:"log,omitempty"`
	NATS       *NATSSink       `json:"nats,omitempty"`
	Postgres   *PostgresSink   `json:"postgres,omitempty"`
	PubSub     *PubSubSink     `json:"pubSub,omitempty"`
	RabbitMQ   *RabbitMQSink   `json:"rabbitmq,omitempty"`
	Redis      *RedisSink      `json:"redis,omitempty"`
	ServiceBus *ServiceBusSink `json:"serviceBus,omitempty"`
	SNS        *SNSSink        `json:"sns,omitempty"`
	SQS        *SQSSink        `json:"sqs,omitempty"`

	// Auth is the login, for http, kafka, nats, rabbitmq, which needs it, and redis. Defaults to none.
	Auth *Auth `json:"auth,omitempty"`
	// TLS are certificates, for http, kafka, nats, postgres, rabbitmq and redis. For kafka, nats, rabbitmq and redis it
	// makes connections TLS, even when it is empty; for http and postgres at least one member must be set. Defaults to
	// none.
	TLS *TLS `json:"tls,omitempty"`
	// ContentMode is how a message holds an event: Binary (attributes as headers, the payload as body), Structured (one
	// JSON object) or, for http, Batch (a JSON array of several events). Not for log, postgres, sqs and sns. Defaults to
	// Binary.
	ContentMode ContentMode `json:"contentMode,omitempty"`
	// Routes say where in the sink the events of a topic go, at most 64, for all sinks but log and
	// postgres. Defaults to none: the sink's own setting, else the topic's own name, holds.
	Routes []Route `json:"routes,omitempty"`
	// Timeout bounds a delivery, 100ms to 10m; of http a request, from 10ms. Defaults to 30s for kafka, postgres and
	// rabbitmq, and to 10s for the others. Not for log.
	Timeout Duration `json:"timeout,omitempty"`
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

// Clone returns a copy of s whose kind is a copy too.
func (s Sink) Clone() Sink {
	for _, kind := range SinkKinds() {
		if set := reflect.ValueOf(&s).Elem().FieldByIndex(kind.Index); !set.IsNil() {
			own := reflect.New(set.Type().Elem())
			own.Elem().Set(set.Elem())
			set.Set(own)
		}
	}
	return s
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
