package rabbitsink

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/pgtest"
	"github.com/outbox-operator/outbox-operator/hack/rabbitmq"
)

// Planted where they must never come out again (CONTRACT C-73). verify looks for them.
const (
	payloadSecret  = "payload-4111"
	passwordSecret = "password-4222"
	wrongSecret    = "wrong-4333"
)

// The users that the broker knows.
const (
	alice   = "alice"   // may write everywhere, and no more
	mallory = "mallory" // may log in
	nobody  = "nobody"  // has no rights in the vhost
	client  = "client"  // as alice, by the certificate of this name
)

// messageLimit is the broker's max_message_size.
const messageLimit = 100_000

// theBroker is the one real broker of this process. The first test that needs it starts it. Tests that
// share it do not run in parallel: some stop it.
var theBroker struct {
	once sync.Once
	*rabbitmq.Broker
	err       error
	ca, other *sinktest.Authority
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
		theBroker.ca, theBroker.other = sinktest.NewAuthority(t, "good"), sinktest.NewAuthority(t, "other")
		good := theBroker.ca.Sign(t, "broker", sinktest.InAnHour())
		expired := theBroker.ca.Sign(t, "broker", time.Now().Add(-time.Minute))
		elsewhere := theBroker.ca.Sign(t, "broker", sinktest.InAnHour(), "rabbitmq.example")
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		write := [3]string{"^$", ".*", "^$"}
		theBroker.Broker, theBroker.err = rabbitmq.Start(ctx, rabbitmq.Options{
			Users:       map[string]string{alice: passwordSecret, mallory: passwordSecret, nobody: passwordSecret, client: ""},
			Permissions: map[string][3]string{alice: write, client: write, mallory: {"^$", "^$", "^$"}},
			Settings:    map[string]string{"max_message_size": fmt.Sprint(messageLimit)},
			Listeners: []rabbitmq.Listener{
				{Name: "TLS", CertPEM: good.CertPEM, KeyPEM: good.KeyPEM},
				{Name: "MUTUAL", CertPEM: good.CertPEM, KeyPEM: good.KeyPEM, ClientCAPEM: theBroker.ca.PEM},
				{Name: "EXPIRED", CertPEM: expired.CertPEM, KeyPEM: expired.KeyPEM},
				{Name: "ELSEWHERE", CertPEM: elsewhere.CertPEM, KeyPEM: elsewhere.KeyPEM},
			},
		})
	})
	if theBroker.err != nil {
		t.Fatal(theBroker.err)
	}
	return theBroker.Broker
}

// kill ends the broker with kill -9. It is there again for the next test.
func kill(t testing.TB) {
	theBroker.Kill()
	t.Cleanup(func() {
		if conn, err := amqp.Dial(theBroker.URL()); err != nil {
			restart(t)
		} else {
			_ = conn.Close()
		}
	})
}

func restart(t testing.TB) {
	t.Helper()
	if err := theBroker.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
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

// received reads a message as the CloudEvents AMQP binding says. Its names are those of the HTTP
// binding with another prefix, and the SDK reads that one without any client of RabbitMQ.
func received(t *testing.T, d amqp.Delivery) sinktest.Message {
	t.Helper()
	h := http.Header{"Content-Type": {d.ContentType}}
	for name, value := range d.Headers {
		if name, ours := strings.CutPrefix(name, "cloudEvents_"); ours {
			h.Set("ce-"+name, value.(string))
		}
	}
	m := sinktest.MessageOf(t, cehttp.NewMessage(h, io.NopCloser(bytes.NewReader(d.Body))))
	if d.MessageId != m.Attributes["id"] || d.Type != m.Attributes["type"] || d.DeliveryMode != amqp.Persistent {
		t.Errorf("message-id %q, type %q, delivery-mode %d: want the event's, and 2", d.MessageId, d.Type, d.DeliveryMode)
	}
	if at, err := time.Parse(time.RFC3339Nano, m.Attributes["time"]); err != nil || d.Timestamp.Unix() != at.Unix() {
		t.Errorf("timestamp %s, want the event's time %s", d.Timestamp, m.Attributes["time"])
	}
	return m
}

// plainConfig is the configuration for a queue on the listener without TLS.
func plainConfig(t testing.TB, queue string) config.RabbitMQSink {
	return config.RabbitMQSink{Addresses: []string{broker(t).Address(rabbitmq.Plain)}, RoutingKey: queue, Auth: password(t, alice, passwordSecret)}
}

func password(t testing.TB, user, password string) *config.RabbitMQAuth {
	return &config.RabbitMQAuth{UsernameFile: file(t, "user", user+"\n"), PasswordFile: file(t, "password", password+"\n")}
}

func open(t testing.TB, cfg config.RabbitMQSink) *sink {
	t.Helper()
	s, err := build(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func newEvent() *dispatcher.Event {
	return &dispatcher.Event{
		ID: uuid.Must(uuid.NewV7()), Seq: 1, Namespace: "shop", Topic: "orders", Attempt: 1, Headers: map[string]string{},
		Payload: []byte(`{"secret":"` + payloadSecret + `"}`), CreatedAt: time.Unix(1_770_000_000, 0),
	}
}

func newEvents(n int) []*dispatcher.Event {
	batch := make([]*dispatcher.Event, n)
	for i := range batch {
		batch[i] = newEvent()
	}
	return batch
}

// send delivers one new event.
func send(t testing.TB, s *sink) error {
	t.Helper()
	return verify(t, s.Deliver(t.Context(), newEvents(1))[0])
}

// verify checks what holds for every error of this package: a remedy, and no secret.
func verify(t testing.TB, err error) error {
	t.Helper()
	if err == nil {
		return nil
	}
	text := err.Error()
	for _, secret := range []string{payloadSecret, passwordSecret, wrongSecret} {
		if strings.Contains(text, secret) {
			t.Errorf("the error holds %q: %s", secret, text)
		}
	}
	if strings.Contains(text, "\n") || !strings.Contains(text, "; ") && !strings.Contains(text, "interrupted") {
		t.Errorf("the error must be one line with a remedy behind a semicolon: %s", text)
	}
	return err
}

func file(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	write(t, path, content)
	return path
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// eventually repeats try until it succeeds.
func eventually(t testing.TB, what string, try func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !try(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}
