package config

import (
	"maps"
	"reflect"
	"slices"
)

// Sink is where events go. Exactly one member must be set.
type Sink struct {
	HTTP       *HTTPSink       `json:"http,omitempty"`
	Kafka      *KafkaSink      `json:"kafka,omitempty"`
	Log        *LogSink        `json:"log,omitempty"`
	NATS       *NATSSink       `json:"nats,omitempty"`
	Postgres   *PostgresSink   `json:"postgres,omitempty"`
	PubSub     *PubSubSink     `json:"pubsub,omitempty"`
	RabbitMQ   *RabbitMQSink   `json:"rabbitmq,omitempty"`
	Redis      *RedisSink      `json:"redis,omitempty"`
	ServiceBus *ServiceBusSink `json:"serviceBus,omitempty"`
	SNS        *SNSSink        `json:"sns,omitempty"`
	SQS        *SQSSink        `json:"sqs,omitempty"`
}

// TLS says whom to trust and how to identify oneself.
type TLS struct {
	// CAFile holds PEM certificates that replace the system's roots.
	CAFile string `json:"caFile,omitempty"`
	// CertFile and KeyFile are the client's certificate and key, both or neither.
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// ServerName is checked against the server's certificate instead of the URL's host.
	ServerName string `json:"serverName,omitempty"`
}

// LogSink writes one JSON line per event to standard output, for trying things out.
type LogSink struct {
	// Payload includes the payload in the line. Defaults to false.
	Payload bool `json:"payload,omitempty"`
}

// ApplyDefaults does nothing: its defaults are the zero values.
func (*LogSink) ApplyDefaults() {}

func (*LogSink) validate(*problems) {}

// member is one kind of sink.
type member interface {
	ApplyDefaults()
	validate(p *problems)
}

// all are the kinds of sinks, by the names of their fields; those that are not set are nil pointers.
func (s Sink) all() map[string]member {
	return map[string]member{
		"http":       s.HTTP,
		"kafka":      s.Kafka,
		"log":        s.Log,
		"nats":       s.NATS,
		"postgres":   s.Postgres,
		"pubsub":     s.PubSub,
		"rabbitmq":   s.RabbitMQ,
		"redis":      s.Redis,
		"serviceBus": s.ServiceBus,
		"sns":        s.SNS,
		"sqs":        s.SQS,
	}
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
