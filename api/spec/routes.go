package spec

import (
	"fmt"
	"slices"
)

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
