// Package rabbitsink publishes events to RabbitMQ by AMQP 0-9-1 as CloudEvents 1.0, in the binary or
// structured mode. Package cloudevent says which attributes they carry.
//
// dispatcher/sink/rabbitmq.md has the settings, guarantees, outcomes and how to secure it.
package rabbitsink

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/singleflight"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/base"
)

const (
	// batchSize is what one Deliver takes, and so the most messages of a channel that wait for their
	// confirmations.
	batchSize = 500
	// connectTimeout bounds a connection with its TLS handshake and login, and the opening of a channel.
	connectTimeout = 10 * time.Second
	// closeTimeout bounds the farewell to a broker that may not respond.
	closeTimeout = time.Second
)

type sink struct {
	base.Server
	key     base.Place // a routing key
	cfg     spec.RabbitMQSink
	timeout time.Duration
	// turns are held by deliveries that use a publisher. idle are the other publishers; the last one used comes
	// first, for it has a channel.
	turns chan struct{}
	idle  []*publisher

	open       context.Context // until Close
	close      context.CancelFunc
	connecting singleflight.Group
	mu         sync.Mutex // of idle and current
	current    *session   // nil: none yet
}

var _ dispatcher.Sink = (*sink)(nil)

// New returns a sink for cfg. route says a routing key of an event, see [base.PlaceOf]. It never fails.
func New(cfg spec.RabbitMQSink, route func(*dispatcher.Event) (string, error)) (dispatcher.Sink, error) {
	return build(cfg, route), nil
}

func build(cfg spec.RabbitMQSink, route func(*dispatcher.Event) (string, error)) *sink {
	cfg.ApplyDefaults()
	s := &sink{
		Server: base.Server{
			Peer: peer, Kind: "RabbitMQ", At: strings.Join(cfg.Addresses, ", "), Doing: "publishing to",
			Limit: min(cfg.Timeout.D(), connectTimeout),
		},
		key: base.PlaceOf(route, cfg.RoutingKey),
		cfg: cfg, timeout: cfg.Timeout.D(), turns: make(chan struct{}, cfg.Channels),
	}
	s.Explain = s.explainLogin
	s.open, s.close = context.WithCancel(context.Background())
	for range cfg.Channels {
		s.idle = append(s.idle, &publisher{})
	}
	return s
}

// BatchSize is 500.
func (*sink) BatchSize() int { return batchSize }

// Deliver publishes the whole batch on one channel, and returns a result for each message as the broker
// confirms it. It waits for a channel that no other delivery uses.
func (s *sink) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	return base.Deliver("rabbitmq", batch, s.message, func(messages []*message) []error { return s.publish(ctx, messages) })
}

// publish takes a publisher for the messages. When the broker closed the channel because of one of them,
// those without a response are sent again, each alone: then it is known which one is to blame.
func (s *sink) publish(ctx context.Context, messages []*message) []error {
	p, err := s.takePublisher(ctx)
	if err != nil {
		return slices.Repeat([]error{err}, len(messages))
	}
	defer s.returnPublisher(p)
	errs := s.send(ctx, p, messages)
	for i, err := range errs {
		var r *refusedMessage
		if !errors.As(err, &r) {
			continue
		}
		if len(messages) > 1 {
			err = s.send(ctx, p, messages[i:i+1])[0]
		}
		if errors.As(err, &r) && r.permanent {
			err = dispatcher.Permanent(dispatcher.ReasonPermanentFailure, err)
		}
		errs[i] = err
	}
	return errs
}

// takePublisher waits for a publisher. It does not wait while the broker takes no messages.
func (s *sink) takePublisher(ctx context.Context) (*publisher, error) {
	if ctx.Err() != nil {
		return nil, s.Interrupted(ctx)
	}
	if err := s.blocked(); err != nil {
		return nil, err
	}
	select {
	case s.turns <- struct{}{}:
	case <-ctx.Done():
		return nil, s.Interrupted(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.idle) - 1
	p := s.idle[last]
	s.idle = s.idle[:last]
	return p, nil
}

func (s *sink) returnPublisher(p *publisher) {
	s.mu.Lock()
	s.idle = append(s.idle, p)
	s.mu.Unlock()
	<-s.turns
}

// Probe logs in on a connection of its own, opens a channel, and checks the exchange, or the queue
// if every event goes to one by the default exchange. Every user may check that. A connection that the broker blocks is known only by one that has published.
func (s *sink) Probe(ctx context.Context) error {
	if err := s.blocked(); err != nil {
		return err
	}
	ses, err := s.connect(ctx)
	if err != nil {
		return s.Unreachable(ctx, err)
	}
	defer ses.close(closeTimeout)
	err = s.checkPlace(ctx, ses)
	var response *amqp.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &response) && response.Code == amqp.NotFound:
		return s.destinationMissing()
	default:
		return s.Unreachable(ctx, err)
	}
}

// Close ends the connection. Nothing is in flight then: Deliver waits for its messages.
func (s *sink) Close(context.Context) error {
	s.close()
	_, _, _ = s.connecting.Do("", func() (any, error) { return nil, nil }) // after one that was being made
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil {
		s.current.close(closeTimeout)
	}
	return nil
}
