package sink

import (
	"slices"

	"github.com/outbox-operator/outbox-operator/api/spec"
)

// Place is one of the destinations in a sink: a Kafka topic, a NATS subject, a RabbitMQ queue, a Redis stream, or a
// cloud's queue or topic.
type Place struct {
	// Name is the destination's.
	Name string
	// Config is the configuration with this as the only destination, whose Probe finds out whether it is there.
	Config spec.Config
}

// Places returns the destinations that cfg's topics and routes name, whatever event comes, each once. It
// returns none where the sink has one destination, which its own Probe checks, and for http and an exchange of RabbitMQ
// with a name, whose parts cannot be queried. cfg must be valid.
// It fails when the pipeline does not compile, and with the topics that no route takes.
func Places(cfg spec.Config) (places []Place, err error) {
	var names []string
	p, err := Pipeline(cfg)
	switch {
	case err != nil:
		return nil, err
	case p.Route() != nil:
		names, err = p.Places(cfg.Namespace, cfg.Topics)
	case place(cfg.Sink) != nil && *place(cfg.Sink) == "":
		names = slices.Compact(slices.Sorted(slices.Values(cfg.Topics)))
	}
	for _, name := range names {
		at := cfg
		at.Sink = cfg.Sink.Clone()
		at.Sink.Routes = nil
		if setting := place(at.Sink); setting != nil && (at.Sink.RabbitMQ == nil || at.Sink.RabbitMQ.Exchange == "") {
			*setting = name
			places = append(places, Place{name, at})
		}
	}
	return places, err
}

// place is the setting that names the one destination of all events; nil where a kind of sink has none.
func place(s spec.Sink) *string {
	switch s.Kind() {
	case "kafka":
		return &s.Kafka.Topic
	case "nats":
		return &s.NATS.Subject
	case "rabbitmq":
		return &s.RabbitMQ.RoutingKey
	case "redis":
		return &s.Redis.Stream
	case "pubSub":
		return &s.PubSub.Topic
	case "serviceBus":
		if s.ServiceBus.Topic != "" {
			return &s.ServiceBus.Topic
		}
		return &s.ServiceBus.Queue
	}
	return nil
}
