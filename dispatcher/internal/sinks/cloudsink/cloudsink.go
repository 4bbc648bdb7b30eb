// Package cloudsink sends events to the queues and topics of the clouds as CloudEvents 1.0: Amazon SQS
// and SNS, Google Cloud Pub/Sub and Azure Service Bus. Package cloudevent says which attributes they
// carry.
//
// dispatcher/sink/cloud.md has the settings, guarantees, outcomes and how to secure it.
package cloudsink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/base"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudevent"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// service is one cloud's way to send messages. Its errors are those of outcome.go. Its methods are safe
// for concurrent use.
type service interface {
	// send sends messages to one destination with one request, and returns a result for each.
	send(ctx context.Context, to string, messages []*message) ([]error, error)
	// probe checks the configured destination, and sends nothing.
	probe(ctx context.Context) error
	close(ctx context.Context) error
	// check says what is wrong with the name of a destination.
	check(to string) error
	// name is the destination as errors name it.
	name(to string) string
}

// limits are what a service takes in one request, and of one message.
type limits struct {
	messages int
	bytes    int
}

type sink struct {
	service
	limits
	class     string // of its failures' causes
	batchSize int
	timeout   time.Duration
	encode    func(*dispatcher.Event) (*message, error)
	// group is the key that all messages of a request must share; nil when they need not.
	group func(*message) string
	// place is the name of a queue or topic.
	place base.Place
}

var _ dispatcher.Sink = (*sink)(nil)

// BatchSize is 10 for SQS and SNS, whose requests take no more, 500 for Pub/Sub and 100 for Service Bus.
func (s *sink) BatchSize() int { return s.batchSize }

// requestsAtOnce bounds the requests of one batch that run at once.
const requestsAtOnce = 50

// together are the messages that requests may have together.
type together struct{ to, group string }

// Deliver sends the batch in as few requests as the service's limits, the destinations and the groups allow.
func (s *sink) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	return base.Deliver(s.class, batch, s.message, func(messages []*message) []error { return s.deliver(ctx, messages) })
}

func (s *sink) deliver(ctx context.Context, messages []*message) []error {
	errs := make([]error, len(messages))
	groups := map[together][]*message{}
	for i, m := range messages {
		m.at = i
		g := together{to: m.to}
		if s.group != nil {
			g.group = s.group(m)
		}
		groups[g] = append(groups[g], m)
	}
	var silent sync.Map // of destinations, by their names
	send := func(g together, messages []*message) {
		for chunk := range s.chunks(messages) {
			for i, err := range s.request(ctx, &silent, g.to, chunk) {
				errs[chunk[i].at] = err
			}
		}
	}
	var running sync.WaitGroup
	var panicked atomic.Pointer[any]
	places := make(chan struct{}, requestsAtOnce)
	for g, messages := range groups {
		if len(groups) == 1 {
			send(g, messages)
			break
		}
		places <- struct{}{}
		running.Go(func() {
			defer func() {
				if v := recover(); v != nil { // the engine recovers only in its own goroutine
					panicked.CompareAndSwap(nil, &v)
				}
				<-places
			}()
			send(g, messages)
		})
	}
	running.Wait()
	if v := panicked.Load(); v != nil {
		panic(*v)
	}
	return errs
}

// message returns the event as a message, with where it goes.
func (s *sink) message(e *dispatcher.Event) (*message, error) {
	to, err := s.place.Of(e)
	if err == nil {
		err = s.check(to)
	}
	if err != nil {
		return nil, reason.Routed(fmt.Errorf("event %s of topic %q has no destination: %w", e.ID, e.Topic, err))
	}
	m, err := s.encode(e)
	if err != nil {
		return nil, cloudevent.Unwritable(s.name(to), e, err)
	}
	if size := m.size(); size > s.bytes {
		return nil, s.tooLarge(to, fmt.Errorf("%d bytes of a message, and it takes %d", size, s.bytes))
	}
	m.to = to
	return m, nil
}

func (s *sink) tooLarge(to string, err error) error {
	return reason.Coded(reason.TooLarge, dispatcher.Permanent(dispatcher.ReasonPermanentFailure,
		fmt.Errorf("%s: the message is too large: %w; make smaller events", s.name(to), err)))
}

// chunks are the messages of one request each.
func (s *sink) chunks(messages []*message) func(yield func([]*message) bool) {
	return func(yield func([]*message) bool) {
		for len(messages) > 0 {
			n, bytes := 0, 0
			for n < len(messages) && n < s.messages && (n == 0 || bytes+messages[n].size() <= s.bytes) {
				bytes += messages[n].size()
				n++
			}
			if !yield(messages[:n]) {
				return
			}
			messages = messages[n:]
		}
	}
}

// request sends one request, and says what became of each message. One that was refused as a whole, for
// what may be one message's fault, is sent again message by message: nothing of it was taken. A destination that is
// silent gets no more of the batch, or each request would wait for the timeout, and spend the attempts of its events.
func (s *sink) request(ctx context.Context, silent *sync.Map, to string, messages []*message) []error {
	if ctx.Err() != nil {
		return slices.Repeat([]error{s.interrupted(ctx, to)}, len(messages))
	}
	if _, is := silent.Load(to); is {
		return slices.Repeat([]error{s.heldBack(to)}, len(messages))
	}
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	errs, err := s.send(limited, to, messages)
	var refused *refusal
	if errors.As(err, &refused) && refused.perMessage && len(messages) > 1 {
		errs = errs[:0]
		for i := range messages {
			errs = append(errs, s.request(ctx, silent, to, messages[i:i+1])...)
		}
		return errs
	}
	if err != nil {
		errs = slices.Repeat([]error{err}, len(messages))
	}
	for i := range errs {
		if errs[i] = s.outcome(ctx, limited, to, errs[i]); reason.IsTimeout(errs[i]) {
			silent.Store(to, nil)
		}
	}
	return errs
}

// Probe checks the configured destination. It sends nothing.
func (s *sink) Probe(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.outcome(ctx, limited, "", s.probe(limited))
}

// Limit is the service's own. Of Service Bus, only the link says it.
func (s *sink) Limit(context.Context) (bytes int, setting string) {
	return s.bytes, "the limit of " + s.name("")
}

// Close ends the connections.
func (s *sink) Close(ctx context.Context) error { return s.close(ctx) }
