package kafkasink

import (
	"context"
	"fmt"
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
	certs   *sinktest.Certificates
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
		certs := sinktest.NewCertificates(t, "client", "kafka.example")
		theBroker.certs = certs
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		theBroker.Broker, theBroker.err = kafka.Start(ctx, kafka.Options{
			ShortLived: true,
			Users:      map[string]string{alice: sinktest.PasswordSecret, mallory: sinktest.PasswordSecret},
			Listeners: []kafka.Listener{
				{Name: "SASL", Protocol: "SASL_PLAINTEXT"},
				{Name: "SASLTLS", Protocol: "SASL_SSL", CertPEM: certs.Server.CertPEM, KeyPEM: certs.Server.KeyPEM},
				{Name: "TLS", Protocol: "SSL", CertPEM: certs.Server.CertPEM, KeyPEM: certs.Server.KeyPEM},
				{Name: "MUTUAL", Protocol: "SSL", CertPEM: certs.Server.CertPEM, KeyPEM: certs.Server.KeyPEM, ClientCAPEM: certs.CA.PEM},
				{Name: "EXPIRED", Protocol: "SSL", CertPEM: certs.Expired.CertPEM, KeyPEM: certs.Expired.KeyPEM},
				{Name: "ELSEWHERE", Protocol: "SSL", CertPEM: certs.Elsewhere.CertPEM, KeyPEM: certs.Elsewhere.KeyPEM},
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
	ends(t, topic) // the broker may respond before it has the partitions
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
