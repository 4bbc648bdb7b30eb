package kafkasink

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// The users that the broker knows.
const (
	alice   = "alice"   // may do everything
	mallory = "mallory" // may produce nothing
)

// theBroker is the one real broker of this process, with a listener for each way to be secure. The
// first test that needs it starts it. Tests that share it do not run in parallel: some stop it.
var theBroker struct {
	once sync.Once
	*kafka.Broker
	err     error
	ca      *sinktest.Authority
	other   *sinktest.Authority
	clients *kgo.Client
	admin   *kadm.Client
}

func TestMain(m *testing.M) { pgtest.Main(tests{m}) }

// tests end with the broker's end.
type tests struct{ *testing.M }

func (m tests) Run() int {
	code := m.M.Run()
	if theBroker.clients != nil {
		theBroker.clients.Close()
	}
	if theBroker.Broker != nil {
		if err := theBroker.Stop(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	return code
}

func broker(t testing.TB) *kafka.Broker {
	t.Helper()
	theBroker.once.Do(func() {
		theBroker.ca, theBroker.other = sinktest.NewAuthority(t, "good"), sinktest.NewAuthority(t, "other")
		good := theBroker.ca.Sign(t, "broker", sinktest.InAnHour())
		expired := theBroker.ca.Sign(t, "broker", time.Now().Add(-time.Minute))
		elsewhere := theBroker.ca.Sign(t, "broker", sinktest.InAnHour(), "kafka.example")
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		theBroker.Broker, theBroker.err = kafka.Start(ctx, kafka.Options{
			Users: map[string]string{alice: sinktest.PasswordSecret, mallory: sinktest.PasswordSecret},
			Listeners: []kafka.Listener{
				{Name: "SASL", Protocol: "SASL_PLAINTEXT"},
				{Name: "SASLTLS", Protocol: "SASL_SSL", CertPEM: good.CertPEM, KeyPEM: good.KeyPEM},
				{Name: "TLS", Protocol: "SSL", CertPEM: good.CertPEM, KeyPEM: good.KeyPEM},
				{Name: "MUTUAL", Protocol: "SSL", CertPEM: good.CertPEM, KeyPEM: good.KeyPEM, ClientCAPEM: theBroker.ca.PEM},
				{Name: "EXPIRED", Protocol: "SSL", CertPEM: expired.CertPEM, KeyPEM: expired.KeyPEM},
				{Name: "ELSEWHERE", Protocol: "SSL", CertPEM: elsewhere.CertPEM, KeyPEM: elsewhere.KeyPEM},
			},
		})
		if theBroker.err != nil {
			return
		}
		theBroker.clients, theBroker.err = kgo.NewClient(kgo.SeedBrokers(theBroker.Address(kafka.Plain)))
		theBroker.admin = kadm.NewClient(theBroker.clients)
	})
	need.Server(t, theBroker.err, kafka.ErrMissing)
	return theBroker.Broker
}

// kill ends the broker with kill -9. It is there again for the next test.
func kill(t testing.TB) {
	theBroker.Kill()
	t.Cleanup(func() {
		if _, err := theBroker.admin.ListBrokers(context.Background()); err != nil {
			restart(t)
		}
	})
}

func restart(t testing.TB) {
	t.Helper()
	if err := theBroker.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// newTopic makes a topic with a name of its own, and settings as name=value.
func newTopic(t testing.TB, partitions int32, settings ...string) string {
	t.Helper()
	broker(t)
	configs := map[string]*string{}
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		configs[name] = &value
	}
	topic := "topic-" + uuid.NewString()
	if _, err := theBroker.admin.CreateTopic(t.Context(), partitions, 1, configs, topic); err != nil {
		t.Fatal(err)
	}
	ends(t, topic) // the broker may answer before it has the partitions
	return topic
}

// ends says where a topic's partitions end, once the broker has them.
func ends(t testing.TB, topic string) kadm.ListedOffsets {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		found, err := theBroker.admin.ListEndOffsets(ctx, topic)
		if err == nil {
			err = found.Error()
		}
		if err == nil {
			return found
		}
		if !kerr.IsRetriable(err) || ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// consume reads all that is in a topic.
func consume(t testing.TB, topic string) (records []*kgo.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	left := int64(0)
	ends(t, topic).Each(func(o kadm.ListedOffset) { left += o.Offset })
	reader, err := kgo.NewClient(kgo.SeedBrokers(theBroker.Address(kafka.Plain)), kgo.ConsumeTopics(topic))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for int64(len(records)) < left {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("%d of %d records were read: %v", len(records), left, err)
		}
		records = append(records, fetches.Records()...)
	}
	return records
}

// plain is the configuration for a topic on the listener without security.
func plainConfig(t testing.TB, topic string) config.KafkaSink {
	return config.KafkaSink{Brokers: []string{broker(t).Address(kafka.Plain)}, Topic: topic}
}

func open(t testing.TB, cfg config.KafkaSink) *sink {
	t.Helper()
	s, err := build(cfg, nil, nil)
	return sinktest.Opened(t, s, err)
}

// send delivers one new event.
func send(t testing.TB, s *sink) error {
	t.Helper()
	return sinktest.Verify(t, s.Deliver(t.Context(), []*dispatcher.Event{sinktest.NewEvent()})[0])
}

// watch calls written for each request that the sink sends, just after it left.
func (s *sink) watch(written func(request []byte)) {
	dial := s.dial
	s.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		return &watchedConn{c, written}, err
	}
}

type watchedConn struct {
	net.Conn
	written func([]byte)
}

func (c *watchedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written(b)
	return n, err
}
