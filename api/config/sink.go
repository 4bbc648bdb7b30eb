package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Sink is where events go. Exactly one member must be set.
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
}

// LogSink writes one JSON line per event to standard output, for trying things out.
type LogSink struct {
	// Payload is Omit or Include, which writes the payload into the line. Defaults to Omit.
	Payload LogPayload `json:"payload,omitempty"`
}

// LogPayload says whether payloads are logged.
type LogPayload string

// The choices.
const (
	LogPayloadOmit    LogPayload = "Omit"
	LogPayloadInclude LogPayload = "Include"
)

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (l *LogSink) ApplyDefaults() { setDefault(&l.Payload, LogPayloadOmit) }

func (l *LogSink) validate(p *problems) {
	p.oneOf("sink.log.payload", string(l.Payload), string(LogPayloadOmit), string(LogPayloadInclude))
}

// member is one kind of sink.
type member interface {
	ApplyDefaults()
	validate(p *problems)
}

// all are the kinds of sinks, by the names of their fields; those that are not set are nil pointers.
func (s Sink) all() map[string]member {
	all, v := map[string]member{}, reflect.ValueOf(s)
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		all[name] = v.Field(i).Interface().(member)
	}
	return all
}

// members are those that are set.
func (s Sink) members() map[string]member {
	set := s.all()
	maps.DeleteFunc(set, func(_ string, m member) bool { return reflect.ValueOf(m).IsNil() })
	return set
}

// Kind is the name of the member that is set, such as http; of several, the first by name.
func (s Sink) Kind() string {
	for _, name := range slices.Sorted(maps.Keys(s.members())) {
		return name
	}
	return ""
}

// timeout is how long the sink that is set lets a delivery take, and that sink's kind. Zero when it has no
// timeout, as log has none.
func (s Sink) timeout() (kind string, timeout Duration) {
	for name, m := range s.members() {
		if field := reflect.ValueOf(m).Elem().FieldByName("Timeout"); field.IsValid() {
			return name, field.Interface().(Duration)
		}
	}
	return "", 0
}

func (s Sink) validate(p *problems) {
	set := map[string]bool{}
	for name, m := range s.all() {
		set[name] = !reflect.ValueOf(m).IsNil()
	}
	p.exactlyOne("sink", set)
	for _, m := range s.members() {
		m.validate(p)
	}
}
