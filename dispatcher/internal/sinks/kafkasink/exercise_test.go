package kafkasink

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/outboxtest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// CONTRACT: C-32, C-70, C-71, C-73
// REQUIREMENT: STORAGE-28, STORAGE-33
func TestKafkaSinkMeetsTheSinkContract(t *testing.T) {
	for _, mode := range []spec.ContentMode{spec.Binary, spec.Structured} {
		t.Run(string(mode), func(t *testing.T) {
			sinktest.Exercise(t, func(t *testing.T) sinktest.Destination {
				d := destination(t, spec.KafkaSink{Access: spec.Access{ContentMode: mode}})
				if mode == spec.Structured { // it decides how a record is written, not how a broker is found again
					d.Stop, d.Start, d.Cannot = nil, nil, map[string]string{"Stop": "that of Binary is the same"}
				}
				return d
			})
		})
	}
}

// destination is a topic of the real broker as sinktest.Exercise drives it.
func destination(t *testing.T, cfg spec.KafkaSink) sinktest.Destination {
	topic := newTopic(t, 3)
	cfg.Brokers, cfg.Topic = []string{broker(t).Address(kafka.Plain)}, topic
	if cfg.Timeout == 0 {
		cfg.Timeout = spec.Duration(need.Wait)
	}
	s := open(t, cfg)
	relayed, closeAll := sinktest.Relayed(t, s.dial)
	s.dial = relayed
	timeout := s.timeout
	var restart func()
	return sinktest.Destination{
		Sink:    s,
		Refuse:  sinktest.Divert(&s.topic.Of, "missing-"+topic),
		Refused: dispatcher.Cause{Class: "kafka", Code: "UNKNOWN_TOPIC_OR_PARTITION"},
		// The record that finds the broker dead may have been sent, and is waited for.
		Stop:   func() { restart = sinktest.Kill(t, theBroker.Server); s.timeout = time.Second },
		Start:  func() { restart(); s.timeout = timeout },
		Idle:   closeAll,
		Remedy: "; create it, as with kafka-topics.sh --create --topic " + topic,
		Missing: func() func() {
			need.OK(t, need.Err(admin.DeleteTopics(t.Context(), topic)))
			return func() {
				need.OK(t, need.Err(admin.CreateTopic(t.Context(), 3, 1, nil, topic)))
				ends(t, topic)
			}
		},
		Hang: func() <-chan struct{} {
			return sinktest.HangServer(t, s, theBroker.Server, (*sinktest.Dial)(&s.dial), isProduce)
		},
		Arrived: func() []sinktest.Message { return sinktest.Messages(t, consume(t, topic), message) },
	}
}

// message reads a record as the CloudEvents Kafka binding says. Its names are those of the HTTP
// binding with other prefixes, and the SDK reads that one without any client of Kafka.
func message(t *testing.T, r *kgo.Record) sinktest.Message {
	h := http.Header{}
	for _, header := range r.Headers {
		h.Set(strings.Replace(header.Key, "ce_", "ce-", 1), string(header.Value))
	}
	m := sinktest.MessageOf(t, cehttp.NewMessage(h, io.NopCloser(bytes.NewReader(r.Value))))
	if key := m.Attributes["partitionkey"]; sinktest.Arrives(string(r.Key)) != key { // the record's is as it is in the row
		t.Errorf("the record's key is %q, want the event's %q", r.Key, key)
	}
	return m
}

// The users that the broker knows.
const (
	alice   = "alice"   // may do everything
	mallory = "mallory" // may produce nothing
)

// theBroker is the one real broker of this process, with a listener for each way to be secure.
var theBroker = need.Shared[*kafka.Broker]{Missing: kafka.ErrMissing, Start: func(ctx context.Context) (*kafka.Broker, error) {
	b, err := kafka.Start(ctx, kafka.Options{
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
	if err != nil {
		return nil, err
	}
	clients, err = kgo.NewClient(kgo.SeedBrokers(b.Address(kafka.Plain)))
	admin = kadm.NewClient(clients)
	return b, err
}}

var (
	clients *kgo.Client // of the broker
	admin   *kadm.Client
	certs   *sinktest.Certificates // the broker's, and its clients'
)

func TestMain(m *testing.M) { pgtest.Main(theBroker.Main(m)) }

func broker(t testing.TB) *kafka.Broker {
	t.Helper()
	if certs == nil {
		certs = sinktest.NewCertificates(t, "client", "kafka.example")
	}
	return theBroker.Get(t)
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
	// A broker that has just started may not count itself yet.
	pgtest.Eventually(t, "the topic is made", func() bool {
		_, err := admin.CreateTopic(t.Context(), partitions, 1, configs, topic)
		need.Must(t, err == nil || errors.Is(err, kerr.InvalidReplicationFactor), "%v", err)
		return err == nil
	})
	ends(t, topic) // the broker may respond before it has the partitions
	return topic
}

// ends says where a topic's partitions end, once the broker has them.
func ends(t testing.TB, topic string) kadm.ListedOffsets {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), need.Wait)
	defer cancel()
	for {
		found, err := admin.ListEndOffsets(ctx, topic)
		if err == nil {
			err = found.Error()
		}
		if err == nil {
			return found
		}
		need.Must(t, kerr.IsRetriable(err) && ctx.Err() == nil, "%v", err)
	}
}

// consume reads all that is in a topic.
func consume(t testing.TB, topic string) (records []*kgo.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), need.Wait)
	defer cancel()
	left := int64(0)
	ends(t, topic).Each(func(o kadm.ListedOffset) { left += o.Offset })
	reader, err := kgo.NewClient(kgo.SeedBrokers(theBroker.Server.Address(kafka.Plain)), kgo.ConsumeTopics(topic))
	need.OK(t, err)
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
func plainConfig(t testing.TB, topic string) spec.KafkaSink {
	return spec.KafkaSink{Brokers: []string{broker(t).Address(kafka.Plain)}, Topic: topic}
}

func open(t testing.TB, cfg spec.KafkaSink) *sink {
	t.Helper()
	s, err := build(cfg, nil, nil)
	return sinktest.Opened(t, s, err)
}

// A whole outbox. Half-way the broker is killed. Kafka's own consumer reads them back.
//
// CONTRACT: C-50, C-70, C-71
func TestNothingIsLost(t *testing.T) {
	events := outboxtest.Events(t, 100_000)
	topic := newTopic(t, 6)
	s, err := New(plainConfig(t, topic), nil, nil)
	need.OK(t, err)
	outboxtest.Deliver(t, outboxtest.Run{
		Sink: s, Events: events, Keys: 1000, Server: theBroker.Server,
		Arrived: func() []sinktest.Message { return arrived(t, topic) },
	})
}

// arrived is what Kafka's console consumer reads. The order of a key is that of its partition.
func arrived(t *testing.T, topic string) []sinktest.Message {
	t.Helper()
	lines := console(t, topic)
	messages, partition := make([]sinktest.Message, len(lines)), map[string]string{}
	for i, line := range lines {
		// Partition:0 <tab> ce_id:...,ce_... <tab> key <tab> value
		part := strings.Split(line, "\t")
		need.Must(t, len(part) == 4, "the consumer wrote %q", line)
		m := sinktest.Message{Attributes: map[string]string{}, Payload: part[3]}
		for h := range strings.SplitSeq(part[1], ",") {
			name, value, _ := strings.Cut(strings.TrimPrefix(h, "ce_"), ":")
			m.Attributes[name] = value
		}
		key := part[2]
		need.Must(t, m.Attributes["partitionkey"] == key, "the record's key is %s: %s", key, line)
		if partition[key] == "" {
			partition[key] = part[0]
		}
		need.Must(t, partition[key] == part[0], "key %s is in %s and in %s", key, partition[key], part[0])
		messages[i] = m
	}
	need.Want(t, 6, "the keys are in %d partitions, want all 6", len(slices.Compact(slices.Sorted(maps.Values(partition)))))
	return messages
}

// console reads a topic with Kafka's own consumer.
func console(t *testing.T, topic string) (lines []string) {
	t.Helper()
	ends, err := admin.ListEndOffsets(t.Context(), topic)
	need.OK(t, err)
	n := int64(0)
	for _, p := range ends[topic] {
		n += p.Offset
	}
	cmd := theBroker.Server.Tool(t.Context(), "org.apache.kafka.tools.consumer.ConsoleConsumer",
		"--bootstrap-server", theBroker.Server.Address(kafka.Plain), "--topic", topic, "--from-beginning",
		"--max-messages", strconv.FormatInt(n, 10), "--timeout-ms", "60000",
		"--property", "print.partition=true", "--property", "print.headers=true", "--property", "print.key=true")
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	need.Must(t, err == nil, "Kafka's console consumer: %v: %s", err, complaints.String())
	for scan := bufio.NewScanner(bytes.NewReader(out)); scan.Scan(); {
		lines = append(lines, scan.Text())
	}
	return lines
}

// The same key goes to the same partition as with Kafka's own producer.
//
// CONTRACT: C-71
func TestPartitionIsThatOfTheJavaClient(t *testing.T) {
	topic := newTopic(t, 7)
	s := open(t, spec.KafkaSink{Brokers: []string{broker(t).Address(kafka.Plain)}, Topic: topic})
	var typed strings.Builder
	batch := make([]*dispatcher.Event, 200)
	for i := range batch {
		batch[i] = sinktest.NewEvent()
		batch[i].PartitionKey = []string{"customer-" + strconv.Itoa(i), uuid.NewString(), "größe " + strconv.Itoa(i)}[i%3]
		fmt.Fprintf(&typed, "%s\t{}\n", batch[i].PartitionKey)
	}
	for _, err := range s.Deliver(t.Context(), batch) {
		need.OK(t, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	java := theBroker.Server.Tool(ctx, "org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", theBroker.Server.Address(kafka.Plain),
		"--topic", topic, "--property", "parse.key=true")
	java.Env = append(java.Environ(), "LC_ALL=C.UTF-8")
	java.Stdin = strings.NewReader(typed.String())
	if out, err := java.CombinedOutput(); err != nil {
		t.Fatalf("Kafka's console producer: %v: %s", err, out)
	}
	ours, theirs := map[string]int32{}, map[string]int32{}
	for _, r := range consume(t, topic) {
		if len(r.Headers) > 0 {
			ours[string(r.Key)] = r.Partition
		} else {
			theirs[string(r.Key)] = r.Partition
		}
	}
	need.That(t, len(ours) == len(batch) && maps.Equal(ours, theirs), "ours  %v\ntheirs %v", ours, theirs)
}

// BenchmarkDeliver delivers batches of 500 events with 200 bytes of payload to one real broker:
// go test -run=- -bench=. -benchtime=200x ./dispatcher/internal/sinks/kafkasink
func BenchmarkDeliver(b *testing.B) {
	for _, workers := range []int{1, 4} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			sinktest.Bench(b, open(b, plainConfig(b, newTopic(b, 6))), workers)
		})
	}
}
