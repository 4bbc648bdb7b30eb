package pipeline

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/expression"
)

// Options say where schemas come from.
type Options struct {
	// ReadFile reads a schema's file. Defaults to os.ReadFile.
	ReadFile func(name string) ([]byte, error)
	// Registry returns schemas of the schema registry. It is called for each event, so it caches. It fails when
	// the schema is not known, for any reason. With nil no schema of the registry is read, as when a
	// configuration is only checked.
	Registry func(ctx context.Context, subject string, version int) (Schema, error)
	// Newer returns the latest version of a subject for an event that breaks the one of Registry, and why it is not known whether
	// that was the latest at since or later: nil when it was. It fails as Registry does. With nil what Registry returns is final.
	Newer func(ctx context.Context, subject string, since time.Time) (schema Schema, unsure, err error)
}

// Schema is what a schema registry has.
type Schema struct {
	// ID is the registry's number for it. It never stands for another schema.
	ID int
	// Type is JSON for a JSON Schema.
	Type string
	// Text is the schema, and References are all that it refers to.
	Text       string
	References []Reference
}

// Reference is a schema that another one refers to by the name.
type Reference struct{ Name, Text string }

// Pipeline is the compiled routes, validation, transform and message of a configuration.
type Pipeline struct {
	routes     []route
	checks     []*check
	transforms []*transform
	message    *envelope
	selected
	// large has a place for each event with a large payload that passes.
	large chan struct{}
}

type route struct {
	field  string
	topics []string
	to     *expression.Expression
}

// check is an entry of validation.
type check struct {
	field           string
	types, versions []string
	schema          schema // nil for none
	rules           []rule
}

type rule struct {
	field, message string
	holds          *expression.Expression
}

type transform struct {
	field string
	// at is the field of the expression.
	at      string
	types   []string
	payload *expression.Expression
}

// New compiles cfg's routes, validation, transform and message. It fails with all that is wrong with them, each
// with the field's path. cfg is valid, as package document has made it.
func New(cfg spec.Config, o Options) (*Pipeline, error) {
	if o.ReadFile == nil {
		o.ReadFile = os.ReadFile
	}
	c := compiler{Options: o, budget: &budget{}}
	p := &Pipeline{large: make(chan struct{}, runtime.GOMAXPROCS(0))}
	for i, r := range cfg.Sink.Routes {
		field := fmt.Sprintf("sink.routes[%d]", i)
		p.routes = append(p.routes, route{field, r.Topics, c.expression(field+".to", r.To, expression.String)})
	}
	for i, v := range cfg.Message.Validation {
		p.checks = append(p.checks, c.check(fmt.Sprintf("message.validation[%d]", i), v))
	}
	for i, t := range cfg.Message.Transform {
		field := fmt.Sprintf("message.transform[%d]", i)
		p.transforms = append(p.transforms, &transform{field, field + ".payload", t.Types, c.expression(field+".payload", t.Payload, expression.JSON)})
	}
	p.message = c.envelope(p, cfg)
	if err := errors.Join(c.problems...); err != nil {
		return nil, err
	}
	p.selected = p.index()
	return p, nil
}

// Route says where in the sink an event goes. It is nil when there are no routes. Its errors name the
// event or the topic, and the route; they hold nothing of the payload. A route that cannot be computed is
// a dispatcher.DestinationFault, as a rule is.
func (p *Pipeline) Route() func(*dispatcher.Event) (string, error) {
	if len(p.routes) == 0 {
		return nil
	}
	return p.route
}

func (p *Pipeline) route(e *dispatcher.Event) (string, error) {
	r := p.routeOf(e.Topic)
	if r == nil {
		return "", unrouted(e.Topic)
	}
	to, err := r.to.String(e)
	if err == nil && to == "" {
		err = errors.New("it makes an empty string")
	}
	if err != nil {
		return "", uncomputed(dispatcher.Cause{Class: dispatcher.ClassRoute, Code: r.field}, Finding{Field: r.field + ".to"}, e, r.field+".to", r.to, err, "or what is enqueued")
	}
	return to, nil
}

// routeOf is the first route that takes the topic, or nil.
func (p *Pipeline) routeOf(topic string) *route {
	for i, r := range p.routes {
		if len(r.topics) == 0 || slices.Contains(r.topics, topic) {
			return &p.routes[i]
		}
	}
	return nil
}

func unrouted(topic string) error {
	return dispatcher.WithCause(dispatcher.Cause{Class: dispatcher.ClassRoute, Code: dispatcher.CodeNoHandler},
		fmt.Errorf("topic %q: %w: no route takes it; add one to sink.routes, or one without topics, or leave the topic out of this dispatcher", topic, dispatcher.ErrNoHandler))
}

// Places returns where the routes send the events of these topics of a namespace, as far as that depends on the topic
// alone, each place once. No topics are all: those that the routes name, and the others where they have one place.
// It fails with the topics that no route takes, and those whose route cannot be computed.
func (p *Pipeline) Places(namespace string, topics []string) (places []string, err error) {
	all := len(topics) == 0
	for _, r := range p.routes {
		of, known := topics, []string{"namespace", "topic"}
		if all {
			of = r.topics
		}
		if all && len(r.topics) == 0 {
			of, known = []string{""}, known[:1]
		}
		if !r.to.ReadsOnly(known...) {
			continue
		}
		for _, topic := range of {
			if at := p.routeOf(topic); at == nil || at.field != r.field {
				continue
			}
			to, failed := p.route(&dispatcher.Event{Namespace: namespace, Topic: topic})
			if err = errors.Join(err, failed); failed == nil && !slices.Contains(places, to) {
				places = append(places, to)
			}
		}
	}
	for _, topic := range topics {
		if p.routeOf(topic) == nil {
			err = errors.Join(err, unrouted(topic))
		}
	}
	return places, err
}

// Check reports what was compiled, an entry at a time, and reads the registry's schemas.
func (p *Pipeline) Check(ctx context.Context, report func(name, detail string, err error)) {
	for _, r := range p.routes {
		report(r.field, named("topic", r.topics)+": "+oneLine(r.to.Text()), nil)
	}
	for _, c := range p.checks {
		var parts []string
		var err error
		if c.schema != nil {
			_, err = c.schema.get(ctx)
			parts = append(parts, c.schema.String())
		}
		for _, r := range c.rules {
			parts = append(parts, oneLine(r.holds.Text()))
		}
		report(c.field, c.concerned()+": "+strings.Join(parts, "; "), err)
	}
	for _, t := range p.transforms {
		report(t.field, named("type", t.types)+": "+oneLine(t.payload.Text()), nil)
	}
	if p.message != nil {
		for _, h := range p.message.headers {
			report(h.field, oneLine(h.value.Text()), nil)
		}
	}
}

// named is a list of topics or types.
func named(what string, names []string) string {
	if len(names) == 0 {
		return "every " + what
	}
	return clip(strings.Join(names, ", "))
}

// oneLine is an expression on one line, of bounded length.
func oneLine(expression string) string { return clip(strings.Join(strings.Fields(expression), " ")) }

// Finding is a part of the configuration that an event does not pass. It holds no value of the event, and
// events with one fault have the same, so that it groups them.
type Finding struct {
	// Field is the field of the configuration: message.validation[0].schema, message.validation[0].rules[1],
	// message.transform[0].payload or sink.routes[2].to. It is payload for a payload that no step can read.
	Field string
	// Place is the place in the payload that a schema refuses: /lines/*/price, with * for the index of an array and
	// for what may be data. Empty for the payload itself, and where there is no schema.
	Place string
	// What is the place in the schema, or the message of the rule and the rule. Empty for others.
	What string
}

// Findings are what an error of this package's sink or route is about, in the order of the configuration. None
// for an error that is not about a step of the pipeline.
func Findings(err error) []Finding {
	var found *foundError
	if errors.As(err, &found) {
		return found.findings
	}
	return nil
}

// foundError is an error with its findings.
type foundError struct {
	error
	findings []Finding
}

func (e *foundError) Unwrap() error { return e.error }
