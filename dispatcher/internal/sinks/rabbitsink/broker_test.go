package rabbitsink

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/rabbitmq"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// The users that the broker knows.
const (
	alice    = "alice"    // may write everywhere, and no more
	mallory  = "mallory"  // may log in
	outsider = "outsider" // has no rights in the vhost
	client   = "client"   // as alice, by the certificate of this name
)

// messageLimit is the broker's max_message_size.
const messageLimit = 100_000

// theBroker is the one real broker of this process. The first test that needs it starts it. Tests that
// share it do not run in parallel: some stop it.
var theBroker struct {
	once sync.Once
	*rabbitmq.Broker
	err   error
	certs *sinktest.Certificates
}

func TestMain(m *testing.M) { pgtest.Main(tests{m}) }

// tests stops the broker after the tests.
type tests struct{ *testing.M }

func (m tests) Run() int {
	code := m.M.Run()
	if theBroker.Broker != nil {
		if err := theBroker.Stop(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	return code
}

func broker(t testing.TB) *rabbitmq.Broker {
	t.Helper()
	theBroker.once.Do(func() {
		certs := sinktest.NewCertificates(t, client, "rabbitmq.example")
		theBroker.certs = certs
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		write := [3]string{"^$", ".*", "^$"}
		theBroker.Broker, theBroker.err = rabbitmq.Start(ctx, rabbitmq.Options{
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
	})
	need.Server(t, theBroker.err, rabbitmq.ErrMissing)
	return theBroker.Broker
}

// flush brings what was declared to the broker's disk: it responds before, and forgets it when it is killed.
func flush(t testing.TB) {
	t.Helper()
	control(t, "eval", "ok = mnesia:sync_log().")
}

func control(t testing.TB, args ...string) {
	t.Helper()
	if _, err := broker(t).Control(context.Background(), args...); err != nil {
		t.Fatal(err)
	}
}

// admin returns a channel of a user who may do everything.
func admin(t testing.TB) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(broker(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // broken, if the test killed the broker
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return channel
}

// newQueue makes a durable queue with a name of its own.
func newQueue(t testing.TB, args amqp.Table) string {
	t.Helper()
	queue, err := admin(t).QueueDeclare("queue-"+uuid.NewString(), true, false, false, false, args)
	if err != nil {
		t.Fatal(err)
	}
	return queue.Name
}

// newExchange makes a durable exchange with a queue that gets all that has a routing key.
func newExchange(t testing.TB, kind string, keys ...string) (exchange, queue string) {
	t.Helper()
	exchange, queue = "exchange-"+uuid.NewString(), newQueue(t, nil)
	channel := admin(t)
	if err := channel.ExchangeDeclare(exchange, kind, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if err := channel.QueueBind(queue, key, exchange, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	return exchange, queue
}

// consume takes all that is in a queue.
func consume(t testing.TB, queue string) (all []amqp.Delivery) {
	t.Helper()
	channel := admin(t)
	state, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	deliveries, err := channel.Consume(queue, "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	for len(all) < state.Messages {
		select {
		case d, ok := <-deliveries:
			if !ok {
				t.Fatalf("%d of %d messages were read", len(all), state.Messages)
			}
			all = append(all, d)
		case <-time.After(time.Minute):
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
	if d.MessageId != m.Attributes["id"] || d.Type != kind || d.DeliveryMode != amqp.Persistent {
		t.Errorf("message-id %q, type %q, delivery-mode %d: want the event's, and 2", d.MessageId, d.Type, d.DeliveryMode)
	}
	if at, err := time.Parse(time.RFC3339Nano, m.Attributes["time"]); err != nil || d.Timestamp.Unix() != at.Unix() {
		t.Errorf("timestamp %s, want the event's time %s", d.Timestamp, m.Attributes["time"])
	}
	return m
}

// plainConfig is the configuration for a queue on the listener without TLS.
func plainConfig(t testing.TB, queue string) config.RabbitMQSink {
	return config.RabbitMQSink{Addresses: []string{broker(t).Address(rabbitmq.Plain)}, RoutingKey: queue, Access: config.Access{Auth: password(t, alice, sinktest.PasswordSecret)}}
}

func password(t testing.TB, user, password string) *config.Auth {
	return sinktest.Login(t, config.AuthPlain, user, password)
}

func open(t testing.TB, cfg config.RabbitMQSink) *sink {
	t.Helper()
	s, err := build(cfg, nil)
	return sinktest.Opened(t, s, err)
}

// eventually repeats try until it succeeds.
func eventually(t testing.TB, what string, try func() bool) {
	t.Helper()
	pgtest.Eventually(t, what, time.Minute, try)
}
