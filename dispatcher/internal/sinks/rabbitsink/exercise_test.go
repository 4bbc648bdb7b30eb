package rabbitsink

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/rabbitmq"
)

// CONTRACT: C-32, C-70, C-73
func TestRabbitSinkMeetsTheSinkContract(t *testing.T) {
	for _, mode := range []config.ContentMode{config.Binary, config.Structured} {
		t.Run(string(mode), func(t *testing.T) {
			sinktest.Exercise(t, func(t *testing.T) sinktest.Destination {
				d := destination(t, config.RabbitMQSink{Access: config.Access{ContentMode: mode, Timeout: config.Duration(15 * time.Second)}})
				if mode == config.Structured { // it decides how a message is written, not how a broker is found again
					d.Stop, d.Start, d.Cannot["Stop"] = nil, nil, "that of Binary is the same"
				}
				return d
			})
		})
	}
}

// destination is an exchange of the real broker as sinktest.Exercise drives it.
func destination(t *testing.T, cfg config.RabbitMQSink) sinktest.Destination {
	exchange, queue := newExchange(t, amqp.ExchangeTopic, "shop.#")
	cfg.Addresses, cfg.Auth = []string{broker(t).Address(rabbitmq.Plain)}, password(t, alice, sinktest.PasswordSecret)
	cfg.Exchange, cfg.RoutingKey = exchange, "shop.orders"
	s := open(t, cfg)
	var restart func()
	refused := map[uuid.UUID]bool{}
	s.routingKey = func(e *dispatcher.Event) (string, error) {
		if refused[e.ID] {
			return "elsewhere", nil
		}
		return "shop.orders", nil
	}
	return sinktest.Destination{
		Sink:    s,
		Refuse:  func(id uuid.UUID) { refused[id] = true },
		Refused: dispatcher.Cause{Class: "rabbitmq", Code: "NO_ROUTE"},
		Cannot:  map[string]string{"Large": "the broker of these tests has a small max_message_size"},
		Stop:    func() { flush(t); restart = sinktest.Kill(t, theBroker.Broker) },
		Start:   func() { restart() },
		Idle: func() {
			ses := s.live()
			control(t, "close_all_connections", "idle for too long")
			eventually(t, "the connection is closed", ses.IsClosed)
		},
		Missing: func() func() {
			if err := admin(t).ExchangeDelete(exchange, false, false); err != nil {
				t.Fatal(err)
			}
			return func() {
				channel := admin(t)
				if err := errors.Join(channel.ExchangeDeclare(exchange, amqp.ExchangeTopic, true, false, false, false, nil),
					channel.QueueBind(queue, "shop.#", exchange, false, nil)); err != nil {
					t.Fatal(err)
				}
			}
		},
		Hang: func() <-chan struct{} {
			if err := sinktest.Send(t, s); err != nil { // makes the connection
				t.Fatal(err)
			}
			theBroker.Pause()
			t.Cleanup(theBroker.Resume)
			return watch(s)
		},
		Arrived: func() (got []sinktest.Message) {
			for _, d := range consume(t, queue) {
				got = append(got, received(t, d))
			}
			return got
		},
	}
}

// The names of headers, character by character: those of the RabbitMQ Protocol Binding for CloudEvents, 3.1.3.1, and
// the trace context's own.
//
// CONTRACT: C-70
func TestHeadersFollowTheProtocolBinding(t *testing.T) {
	queue := newQueue(t, nil)
	s := open(t, plainConfig(t, queue))
	e := sinktest.NewEvent()
	e.EventType, e.AggregateID, e.DedupeKey = "OrderPlaced", "order-7", "key-1"
	e.Headers = map[string]string{"correlation_id": "c-42", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
	if err := s.Deliver(t.Context(), []*dispatcher.Event{e})[0]; err != nil {
		t.Fatal(err)
	}
	d := consume(t, queue)[0]
	want := []string{
		"ce-aggregateid", "ce-attempt", "ce-correlationid", "ce-dedupekey", "ce-fencingtoken", "ce-id", "ce-outboxnamespace",
		"ce-partitionkey", "ce-sequence", "ce-source", "ce-specversion", "ce-subject", "ce-time", "ce-topic", "ce-traceparent",
		"ce-trackingid", "ce-type", "correlation_id", "traceparent",
	}
	if got := slices.Sorted(maps.Keys(d.Headers)); !slices.Equal(got, want) {
		t.Errorf("the headers are\n\t%q\nwant\n\t%q", got, want)
	}
	if d.Headers["ce-type"] != "OrderPlaced" || d.ContentType != "application/json" {
		t.Errorf("ce-type is %v, and the content type %s", d.Headers["ce-type"], d.ContentType)
	}

	// As the AMQP 1.0 binding has them, and without CloudEvents.
	for prefix, bare := range map[string]bool{config.PrefixAMQP: false, config.PrefixAMQPUnderscore: false, config.PrefixRabbitMQ: true} {
		queue := newQueue(t, nil)
		cfg := plainConfig(t, queue)
		cfg.AttributePrefix = prefix
		e.Message = dispatcher.Message{Bare: bare, Headers: []dispatcher.Header{{Name: "event_type", Value: "Größe"}}}
		if err := open(t, cfg).Deliver(t.Context(), []*dispatcher.Event{e})[0]; err != nil {
			t.Fatal(err)
		}
		d := consume(t, queue)[0]
		if bare {
			if len(d.Headers) != 2 || d.Headers["event_type"] != "Größe" || d.ContentType != "application/json" || d.MessageId != e.ID.String() {
				t.Errorf("bare: %q, %+v", d.Headers, d)
			}
		} else if d.Headers[prefix+"type"] != "OrderPlaced" || d.Headers["event_type"] != "Größe" || len(d.Headers) != len(want)+1 {
			t.Errorf("%s: %q", prefix, d.Headers)
		}
	}
}

// watch returns a channel that gets a value when the sink has begun to publish.
func watch(s *sink) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	channel := s.idle[len(s.idle)-1].channel
	before, begun := channel.GetNextPublishSeqNo(), make(chan struct{}, 1)
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for channel.GetNextPublishSeqNo() == before && !channel.IsClosed() {
			<-tick.C
		}
		begun <- struct{}{}
	}()
	return begun
}
