package rabbitsink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/outboxtest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/rabbitmq"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// CONTRACT: C-32, C-70, C-73
func TestRabbitSinkMeetsTheSinkContract(t *testing.T) {
	for _, mode := range []spec.ContentMode{spec.Binary, spec.Structured} {
		t.Run(string(mode), func(t *testing.T) {
			sinktest.Exercise(t, func(t *testing.T) sinktest.Destination {
				d := destination(t, spec.RabbitMQSink{Access: spec.Access{ContentMode: mode, Timeout: spec.Duration(15 * time.Second)}})
				if mode == spec.Structured { // it decides how a message is written, not how a broker is found again
					d.Stop, d.Start, d.Cannot["Stop"] = nil, nil, "that of Binary is the same"
				}
				return d
			})
		})
	}
}

// destination is an exchange of the real broker as sinktest.Exercise drives it.
func destination(t *testing.T, cfg spec.RabbitMQSink) sinktest.Destination {
	exchange, queue := newExchange(t, amqp.ExchangeTopic, "shop.#")
	cfg.Addresses, cfg.Auth = []string{broker(t).Address(rabbitmq.Plain)}, password(t, alice, sinktest.PasswordSecret)
	cfg.Exchange, cfg.RoutingKey = exchange, "shop.orders"
	s := open(t, cfg)
	var restart func()
	return sinktest.Destination{
		Sink:    s,
		Refuse:  sinktest.Divert(&s.key.Of, "elsewhere"),
		Refused: dispatcher.Cause{Class: "rabbitmq", Code: "NO_ROUTE"},
		Cannot:  map[string]string{"Large": "the broker of these tests has a small max_message_size"},
		Stop:    func() { flush(t); restart = sinktest.Kill(t, theBroker.Server) },
		Start:   func() { restart() },
		Idle: func() {
			ses := s.live()
			control(t, "close_all_connections", "idle for too long")
			eventually(t, "the connection is closed", ses.IsClosed)
		},
		Remedy: `exchange "` + exchange + `" at ` + s.At + " does not exist; declare it, or correct exchange",
		Missing: func() func() {
			need.OK(t, admin(t).ExchangeDelete(exchange, false, false))
			return func() {
				channel := admin(t)
				need.OK(t, errors.Join(channel.ExchangeDeclare(exchange, amqp.ExchangeTopic, true, false, false, false, nil),
					channel.QueueBind(queue, "shop.#", exchange, false, nil)))
			}
		},
		Hang: func() <-chan struct{} {
			if err := sinktest.Send(t, s); err != nil { // makes the connection
				t.Fatal(err)
			}
			theBroker.Server.Pause()
			t.Cleanup(theBroker.Server.Resume)
			return watch(s)
		},
		Arrived: func() []sinktest.Message { return sinktest.Messages(t, consume(t, queue), received) },
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
	need.OK(t, s.Deliver(t.Context(), []*dispatcher.Event{e})[0])
	d := consume(t, queue)[0]
	want := []string{
		"ce-aggregateid", "ce-attempt", "ce-correlationid", "ce-dedupekey", "ce-fencingtoken", "ce-id", "ce-outboxnamespace",
		"ce-partitionkey", "ce-sequence", "ce-source", "ce-specversion", "ce-subject", "ce-time", "ce-topic", "ce-traceparent",
		"ce-trackingid", "ce-type", "correlation_id", "traceparent",
	}
	need.WantAll(t, want, "the headers are\n\t%q\nwant\n\t%q", slices.Sorted(maps.Keys(d.Headers)))
	need.That(t, d.Headers["ce-type"] == "OrderPlaced" && d.ContentType == "application/json", "ce-type is %v, and the content type %s", d.Headers["ce-type"], d.ContentType)

	// As the AMQP 1.0 binding has them, and without CloudEvents.
	for prefix, bare := range map[string]bool{spec.PrefixAMQP: false, spec.PrefixAMQPUnderscore: false, spec.PrefixRabbitMQ: true} {
		queue := newQueue(t, nil)
		cfg := plainConfig(t, queue)
		cfg.AttributePrefix = prefix
		e.Message = dispatcher.Message{Bare: bare, Headers: []dispatcher.Header{{Name: "event_type", Value: "Größe"}}}
		need.OK(t, open(t, cfg).Deliver(t.Context(), []*dispatcher.Event{e})[0])
		d := consume(t, queue)[0]
		if bare {
			need.That(t, len(d.Headers) == 2 && d.Headers["event_type"] == "Größe" && d.ContentType == "application/json" && d.MessageId == e.ID.String(),
				"bare: %q, %+v", d.Headers, d)
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

// A whole outbox arrives in a durable queue, in the order of its keys, though the broker ends half-way.
// The broker of the classic queue is killed. That of
// the quorum queue stops in order: after a kill, RabbitMQ 3.10 brings a quorum queue of one node back
// without a leader now and then, and confirms nothing until it is started once more.
//
// CONTRACT: C-50, C-70, C-71
func TestNothingIsLost(t *testing.T) {
	events := outboxtest.Events(t, 10_000)
	for kind, end := range map[string]func(){
		"classic": func() { flush(t); sinktest.Kill(t, broker(t))() },
		"quorum":  func() { control(t, "stop_app"); control(t, "start_app") },
	} {
		t.Run(kind, func(t *testing.T) {
			queue := newQueue(t, amqp.Table{"x-queue-type": kind})
			outboxtest.Deliver(t, outboxtest.Run{
				Sink: open(t, plainConfig(t, queue)), Events: events, Keys: 1000, Halfway: end,
				Arrived: func() []sinktest.Message { return sinktest.Messages(t, consume(t, queue), received) },
			})
		})
	}
}

// BenchmarkDeliver delivers batches of 500 events with 200 bytes of payload into one quorum or
// classic queue of a real broker: go test -run=- -bench=. -benchtime=100x ./dispatcher/internal/sinks/rabbitsink
func BenchmarkDeliver(b *testing.B) {
	for _, kind := range []string{"quorum", "classic"} {
		b.Run(kind, func(b *testing.B) {
			sinktest.Bench(b, open(b, plainConfig(b, newQueue(b, amqp.Table{"x-queue-type": kind}))), 4)
		})
	}
}

// The users that the broker knows.
const (
	alice    = "alice"    // may write everywhere, and no more
	mallory  = "mallory"  // may log in
	outsider = "outsider" // has no rights in the vhost
	client   = "client"   // as alice, by the certificate of this name
)

// messageLimit is the broker's max_message_size.
const messageLimit = 100_000

// theBroker is the one real broker of this process.
var theBroker = need.Shared[*rabbitmq.Broker]{Missing: rabbitmq.ErrMissing, Start: func(ctx context.Context) (*rabbitmq.Broker, error) {
	write := [3]string{"^$", ".*", "^$"}
	return rabbitmq.Start(ctx, rabbitmq.Options{
		Users:       map[string]string{alice: sinktest.PasswordSecret, mallory: sinktest.PasswordSecret, outsider: sinktest.PasswordSecret, client: ""},
		Permissions: map[string][3]string{alice: write, client: write, mallory: {"^$", "^$", "^$"}},
		Settings:    map[string]string{"max_message_size": fmt.Sprint(messageLimit)},
		Listeners: []rabbitmq.Listener{
			{Name: "TLS", CertPEM: certs.Server.CertPEM, KeyPEM: certs.Server.KeyPEM},
			{Name: "MUTUAL", CertPEM: certs.Server.CertPEM, KeyPEM: certs.Server.KeyPEM, ClientCAPEM: certs.CA.PEM},
			{Name: "EXPIRED", CertPEM: certs.Expired.CertPEM, KeyPEM: certs.Expired.KeyPEM},
			{Name: "ELSEWHERE", CertPEM: certs.Elsewhere.CertPEM, KeyPEM: certs.Elsewhere.KeyPEM},
		},
	})
}}

// certs are the broker's, and its clients'.
var certs *sinktest.Certificates

func TestMain(m *testing.M) { pgtest.Main(theBroker.Main(m)) }

func broker(t testing.TB) *rabbitmq.Broker {
	t.Helper()
	if certs == nil {
		certs = sinktest.NewCertificates(t, client, "rabbitmq.example")
	}
	return theBroker.Get(t)
}

// flush brings what was declared to the broker's disk: it responds before, and forgets it when it is killed.
func flush(t testing.TB) {
	t.Helper()
	control(t, "eval", "ok = mnesia:sync_log().")
}

func control(t testing.TB, args ...string) {
	t.Helper()
	need.OK(t, need.Err(broker(t).Control(context.Background(), args...)))
}

// admin returns a channel of a user who may do everything.
func admin(t testing.TB) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(broker(t).URL())
	need.OK(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // broken, if the test killed the broker
	channel, err := conn.Channel()
	need.OK(t, err)
	return channel
}

// newQueue makes a durable queue with a name of its own.
func newQueue(t testing.TB, args amqp.Table) string {
	t.Helper()
	queue, err := admin(t).QueueDeclare("queue-"+uuid.NewString(), true, false, false, false, args)
	need.OK(t, err)
	return queue.Name
}

// newExchange makes a durable exchange with a queue that gets all that has a routing key.
func newExchange(t testing.TB, kind string, keys ...string) (exchange, queue string) {
	t.Helper()
	exchange, queue = "exchange-"+uuid.NewString(), newQueue(t, nil)
	channel := admin(t)
	need.OK(t, channel.ExchangeDeclare(exchange, kind, true, false, false, false, nil))
	for _, key := range keys {
		need.OK(t, channel.QueueBind(queue, key, exchange, false, nil))
	}
	return exchange, queue
}

// consume takes all that is in a queue.
func consume(t testing.TB, queue string) (all []amqp.Delivery) {
	t.Helper()
	channel := admin(t)
	state, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	need.OK(t, err)
	deliveries, err := channel.Consume(queue, "", true, false, false, false, nil)
	need.OK(t, err)
	for len(all) < state.Messages {
		select {
		case d, ok := <-deliveries:
			need.Must(t, ok, "%d of %d messages were read", len(all), state.Messages)
			all = append(all, d)
		case <-time.After(need.Wait):
			t.Fatalf("%d of %d messages were read", len(all), state.Messages)
		}
	}
	return all
}

// received reads a message as the RabbitMQ binding of CloudEvents says. Its names are those of the
// HTTP binding, which the SDK reads without any client of RabbitMQ.
func received(t *testing.T, d amqp.Delivery) sinktest.Message {
	t.Helper()
	h := http.Header{"Content-Type": {d.ContentType}}
	for name, value := range d.Headers {
		if name, ours := strings.CutPrefix(name, "ce-"); ours {
			h.Set("ce-"+name, value.(string))
		}
	}
	m := sinktest.MessageOf(t, cehttp.NewMessage(h, io.NopCloser(bytes.NewReader(d.Body))))
	kind := m.Attributes["type"]
	if len(kind) > 255 {
		kind = "" // it does not fit into the property
	}
	need.That(t, d.MessageId == m.Attributes["id"] && d.Type == kind && d.DeliveryMode == amqp.Persistent,
		"message-id %q, type %q, delivery-mode %d: want the event's, and 2", d.MessageId, d.Type, d.DeliveryMode)
	if at, err := time.Parse(time.RFC3339Nano, m.Attributes["time"]); err != nil || d.Timestamp.Unix() != at.Unix() {
		t.Errorf("timestamp %s, want the event's time %s", d.Timestamp, m.Attributes["time"])
	}
	return m
}

// plainConfig is the configuration for a queue on the listener without TLS.
func plainConfig(t testing.TB, queue string) spec.RabbitMQSink {
	return spec.RabbitMQSink{Addresses: []string{broker(t).Address(rabbitmq.Plain)}, RoutingKey: queue, Access: spec.Access{Auth: password(t, alice, sinktest.PasswordSecret)}}
}

func password(t testing.TB, user, password string) *spec.Auth {
	return sinktest.Login(t, spec.AuthPlain, user, password)
}

func open(t testing.TB, cfg spec.RabbitMQSink) *sink {
	t.Helper()
	return sinktest.Opened(t, build(cfg, nil), nil)
}

// eventually repeats try until it succeeds.
func eventually(t testing.TB, what string, try func() bool) {
	t.Helper()
	pgtest.Eventually(t, what, try)
}
