package spec

import (
	"fmt"
	"slices"
)

// Route says where the events of some topics go. The first route that takes an event's topic holds; a
// topic that none takes fails (CONTRACT C-29).
type Route struct {
	// Topics are those that the route takes, at most 256. None means all that no route before it takes.
	Topics []string `json:"topics,omitempty"`
	// To is a CEL expression over event that makes a string: a Kafka topic, a NATS subject, a RabbitMQ
	// routing key, a Redis stream, an HTTP path, or the name of a cloud's queue or topic. Required.
	To string `json:"to"`
}

// Transformation changes the payload of some events before it leaves. The row stays as it is.
type Transformation struct {
	// Types are the event types that it is for, at most 256. One that ends with * is for all types that begin
	// so, such as order.*. None means all.
	Types []string `json:"types,omitempty"`
	// Payload is a CEL expression over event and payload that makes the new payload, a map. Required.
	Payload string `json:"payload"`
}

// unrouted are the kinds of sinks that take no routes, because they have one destination.
var unrouted = []string{"log", "postgres"}

// maxSteps is the most entries of routes, of validation and of transform.
const maxSteps = 64

func (s Sink) validateRoutes(p *problems) {
	kind := s.Kind()
	p.when(len(s.Routes) > 0 && slices.Contains(unrouted, kind), "sink.routes", "are for sinks that have several destinations, and %s is none; remove them", kind)
	p.when(len(s.Routes) > maxSteps, "sink.routes", "has %d entries; keep at most %d", len(s.Routes), maxSteps)
	all := -1
	for i, r := range s.Routes {
		field := fmt.Sprintf("sink.routes[%d]", i)
		p.length(field+".to", r.To, maxExpression)
		p.when(all >= 0, field, "is never used, because sink.routes[%d] takes all topics; move it before that one", all)
		if len(r.Topics) == 0 {
			all = i
		}
		p.when(len(r.Topics) > 256, field+".topics", "has %d entries; list at most 256", len(r.Topics))
		for j, topic := range r.Topics {
			p.length(fmt.Sprintf("%s.topics[%d]", field, j), topic, 255)
		}
	}
}

func (c Config) validateTransform(p *problems) {
	p.when(len(c.Message.Transform) > maxSteps, "message.transform", "has %d entries; keep at most %d", len(c.Message.Transform), maxSteps)
	for i, t := range c.Message.Transform {
		field := fmt.Sprintf("message.transform[%d]", i)
		p.types(field, t.Types)
		p.length(field+".payload", t.Payload, maxExpression)
	}
}

// types checks a list of event types.
func (p *problems) types(field string, types []string) {
	p.when(len(types) > 256, field+".types", "has %d entries; list at most 256, or none for all", len(types))
	for i, name := range types {
		p.length(fmt.Sprintf("%s.types[%d]", field, i), name, 255)
	}
}
