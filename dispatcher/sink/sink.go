// Package sink makes the sink that a configuration names. Each kind is a package of its own;
// package cloudevent says which attributes their messages carry, and sinktest what they must do.
// README.md compares the sinks, and says how to add one.
package sink

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/document"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/pipeline"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/registry"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/copysink"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/httpsink"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/kafkasink"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/logsink"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/natssink"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/postgressink"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/rabbitsink"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/redissink"
)

// New returns the sink that is set in cfg, behind cfg's validation and
// transformations, and with its routes. The log sink writes to log.
// Fields that are not set have their defaults. It fails when the settings would be refused in an OutboxDispatcher, with the same
// words, when the pipeline does not compile, and when files cannot be used.
func New(cfg spec.Config, log io.Writer) (dispatcher.Sink, error) {
	p, err := Pipeline(cfg)
	if err != nil {
		return nil, err
	}
	return Behind(p, cfg, log)
}

// Behind is [New] with a pipeline that was compiled from cfg.
// It fails when the sink's settings or files cannot be used.
func Behind(p *pipeline.Pipeline, cfg spec.Config, log io.Writer) (dispatcher.Sink, error) {
	s, err := bare(cfg, p.Route(), log)
	if err != nil {
		return nil, err
	}
	return p.Wrap(s), nil
}

// Drafts makes the messages of a configuration, and sends none.
type Drafts struct {
	pipeline *pipeline.Pipeline
	sink     draft.Sink
}

// NewDrafts returns the drafts of cfg. It connects to nothing. It fails as [New] does.
func NewDrafts(cfg spec.Config) (*Drafts, error) {
	p, err := Pipeline(cfg)
	if err != nil {
		return nil, err
	}
	s, err := bare(cfg, p.Route(), io.Discard)
	if err != nil {
		return nil, err
	}
	d, ok := s.(draft.Sink)
	if !ok {
		return nil, fmt.Errorf("the sink %s cannot say what it would send", cfg.Sink.Kind())
	}
	return &Drafts{p, d}, nil
}

// Draft returns the message that the dispatcher would send for the event, through its validation, transformations
// and routes. Its error is that of the delivery: see package pipeline for what it does to the event. Only the
// schema registry is queried, where the configuration has one.
func (d *Drafts) Draft(ctx context.Context, e *dispatcher.Event) (draft.Message, error) {
	r := &recorder{Sink: d.sink}
	err := d.pipeline.Wrap(r).Deliver(ctx, []*dispatcher.Event{e})[0]
	return r.message, err
}

// Close ends what the sink has begun, which is not a connection. It fails when the sink's Close does.
func (d *Drafts) Close(ctx context.Context) error { return d.sink.Close(ctx) }

// recorder stands for a sink, and keeps what that would send.
type recorder struct {
	draft.Sink
	message draft.Message
}

// Deliver keeps the message of the one event.
func (r *recorder) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	var err error
	r.message, err = r.Draft(ctx, batch[0])
	return []error{err}
}

// limited is a sink that knows how large messages may be.
type limited interface {
	// Limit is the most bytes that the destination takes of a message with all its headers, and the
	// setting that says so. 0 means that it is not known.
	Limit(ctx context.Context) (bytes int, setting string)
}

// Limit is the most bytes that cfg's destination takes of a message with all its headers, and the setting
// that says so. 0 means that it is not known.
func Limit(ctx context.Context, cfg spec.Config) (bytes int, setting string) {
	p, err := Pipeline(cfg)
	if err != nil {
		return 0, ""
	}
	s, err := bare(cfg, p.Route(), io.Discard)
	if err != nil {
		return 0, ""
	}
	defer func() { _ = s.Close(ctx) }() // nothing was sent
	if l, ok := s.(limited); ok {
		return l.Limit(ctx)
	}
	return 0, ""
}

// Warnings says what is odd about the destinations of cfg, though events can be delivered to them. It fails when they cannot be reached.
func Warnings(ctx context.Context, cfg spec.Config) ([]string, error) {
	if cfg.Sink.Copy == nil {
		return nil, nil
	}
	return copysink.New(cfg).Warnings(ctx)
}

// bare is the sink alone. route says where in it an event goes; nil leaves that to the sink's settings.
func bare(cfg spec.Config, route func(*dispatcher.Event) (string, error), log io.Writer) (dispatcher.Sink, error) {
	cfg, err := document.Complete(cfg)
	if err != nil {
		return nil, err
	}
	s := cfg.Sink
	switch s.Kind() {
	case "copy":
		return copysink.New(cfg), nil
	case "http":
		return httpsink.New(*s.HTTP, route)
	case "kafka":
		return kafkasink.New(*s.Kafka, cfg.Message.SchemaRegistry, route)
	case "log":
		return logsink.New(*s.Log, log), nil
	case "nats":
		return natssink.New(*s.NATS, route)
	case "postgres":
		return postgressink.New(*s.Postgres, route)
	case "rabbitmq":
		return rabbitsink.New(*s.RabbitMQ, route)
	case "redis":
		return redissink.New(*s.Redis, route)
	default:
		return cloud(s, route)
	}
}

// Pipeline compiles cfg's routes, validation and transformations. It fails with all that is wrong with them.
func Pipeline(cfg spec.Config) (*pipeline.Pipeline, error) {
	var o pipeline.Options
	cfg, err := document.Complete(cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Message.SchemaRegistry != nil {
		client, err := registry.New(*cfg.Message.SchemaRegistry)
		if err != nil {
			return nil, err
		}
		o.Registry = func(ctx context.Context, subject string, version int) (pipeline.Schema, error) {
			s, err := client.Schema(ctx, subject, version)
			return schemaOf(s), err
		}
		o.Newer = func(ctx context.Context, subject string, since time.Time) (pipeline.Schema, error, error) {
			s, unsure, err := client.Newer(ctx, subject, since)
			return schemaOf(s), unsure, err
		}
	}
	return pipeline.New(cfg, o)
}

func schemaOf(s registry.Schema) pipeline.Schema {
	made := pipeline.Schema{ID: s.ID, Type: s.Type, Text: s.Text}
	for _, r := range s.References {
		made.References = append(made.References, pipeline.Reference(r))
	}
	return made
}

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
		at.Sink = spec.Copy(cfg.Sink)
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
