package readers_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/readers"
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
	"github.com/outbox-operator/outbox-operator/hack/servers/rabbitmq"
	"github.com/outbox-operator/outbox-operator/hack/testing/languages"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// timeout bounds a broker's start and a reader's reading.
const timeout = need.Install

func start(t *testing.T, args ...string) *readers.Reader {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	r, err := readers.Start(ctx, args...)
	need.Server(t, err, readers.ErrMissing)
	return r
}

func startJava(t *testing.T, args ...string) *readers.Reader {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	r, err := readers.StartJava(ctx, t.TempDir(), args...)
	need.Server(t, err, languages.ErrMissing)
	return r
}

// deliver sends the awkward events with the sink.
func deliver(t *testing.T, cfg spec.Sink) map[string]sinktest.Awkward {
	t.Helper()
	s, err := sink.New(spec.Config{Dispatcher: spec.Dispatcher{Sink: cfg}}, io.Discard)
	need.OK(t, err)
	sent := map[string]sinktest.Awkward{}
	for _, a := range sinktest.AwkwardEvents() {
		if err := s.Deliver(t.Context(), []*dispatcher.Event{a.Event})[0]; err != nil {
			t.Errorf("%s was not delivered: %v", a.Name, err)
			continue
		}
		sent[a.Event.ID.String()] = a
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	return sent
}

// compare compares what was read with what was sent.
func compare(t *testing.T, r *readers.Reader, sent map[string]sinktest.Awkward) {
	t.Helper()
	all, err := r.Events()
	if err != nil {
		t.Error(err)
	}
	for _, e := range all {
		id := e.Attributes["id"]
		a, ok := sent[id]
		if !ok {
			t.Errorf("%q was read, and never sent, or read before", id)
			continue
		}
		delete(sent, id)
		at, err := time.Parse(time.RFC3339Nano, e.Attributes["time"])
		if err != nil {
			t.Errorf("%s: the time: %v", a.Name, err)
		}
		e.Attributes["time"] = at.UTC().Format(time.RFC3339Nano)
		a.Check(t, sinktest.Message{Attributes: e.Attributes, Payload: string(e.Data)})
		if e.Key != "" && e.Key != a.Event.Key() {
			t.Errorf("%s: the record's key is %.100q, want %.100q", a.Name, e.Key, a.Event.Key())
		}
	}
	for _, a := range sent {
		t.Errorf("%s was not read", a.Name)
	}
}

func count() string { return fmt.Sprint(len(sinktest.AwkwardEvents())) }

var modes = []spec.ContentMode{spec.Binary, spec.Structured}

// By the CloudEvents SDK for Python.
//
// CONTRACT: C-70, C-71
func TestSDKReadsAwkwardEventsOverHTTP(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			r := start(t, "http", count())
			port, err := r.Line()
			need.OK(t, err)
			compare(t, r, deliver(t, spec.Sink{HTTP: &spec.HTTPSink{URL: "http://127.0.0.1:" + port}, ContentMode: mode}))
		})
	}
}

// By the SDK for Python with confluent-kafka, and by that for Java with Kafka's own client.
//
// CONTRACT: C-70, C-71
func TestSDKsReadAwkwardEventsFromKafka(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	broker, err := kafka.Start(ctx, kafka.Options{})
	need.Server(t, err, kafka.ErrMissing)
	t.Cleanup(func() { _ = broker.Stop(context.WithoutCancel(t.Context())) })
	address := broker.Address(kafka.Plain)
	client, err := kgo.NewClient(kgo.SeedBrokers(address))
	need.OK(t, err)
	defer client.Close()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			topic := "awkward-" + uuid.NewString()
			need.OK(t, need.Err(kadm.NewClient(client).CreateTopic(ctx, 1, 1, nil, topic)))
			sent := deliver(t, spec.Sink{Kafka: &spec.KafkaSink{Brokers: []string{address}, Topic: topic}, ContentMode: mode})
			for language, r := range map[string]*readers.Reader{"Python": start(t, "kafka", address, topic, count()), "Java": startJava(t, address, topic, count())} {
				t.Run(language, func(t *testing.T) { compare(t, r, maps.Clone(sent)) })
			}
		})
	}
}

// RabbitMQ's messages are read with pika by the protocol that wrote them, AMQP 0.9.1, and, those of mode Structured, by
// AMQP 1.0 with Qpid Proton.
//
// CONTRACT: C-70, C-71
func TestClientsReadAwkwardEventsFromRabbitMQ(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	broker, err := rabbitmq.Start(ctx, rabbitmq.Options{Plugins: []string{rabbitmq.AMQP10}})
	need.Server(t, err, rabbitmq.ErrMissing)
	t.Cleanup(func() { _ = broker.Stop(context.WithoutCancel(t.Context())) })
	conn, err := amqp.Dial(broker.URL())
	need.OK(t, err)
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	need.OK(t, err)
	password := filepath.Join(t.TempDir(), "password")
	need.OK(t, os.WriteFile(password, []byte(rabbitmq.Admin), 0o600))
	for name, s := range map[string]spec.Sink{
		"Binary":                  {RabbitMQ: &spec.RabbitMQSink{AttributePrefix: spec.PrefixRabbitMQ}, ContentMode: spec.Binary},
		"Structured":              {RabbitMQ: &spec.RabbitMQSink{AttributePrefix: spec.PrefixRabbitMQ}, ContentMode: spec.Structured},
		"Binary of AMQP 1.0":      {RabbitMQ: &spec.RabbitMQSink{AttributePrefix: spec.PrefixAMQP}, ContentMode: spec.Binary},
		"Binary with underscores": {RabbitMQ: &spec.RabbitMQSink{AttributePrefix: spec.PrefixAMQPUnderscore}, ContentMode: spec.Binary},
		"Structured of AMQP 1.0":  {RabbitMQ: &spec.RabbitMQSink{AttributePrefix: spec.PrefixAMQP}, ContentMode: spec.Structured},
	} {
		for client, read := range map[string]func(t *testing.T, queue string) *readers.Reader{
			"pika": func(t *testing.T, queue string) *readers.Reader {
				return start(t, "rabbitmq", broker.URL(), queue, count(), s.RabbitMQ.AttributePrefix)
			},
			"Proton": func(t *testing.T, queue string) *readers.Reader {
				return start(t, "amqp", broker.URL(), queue, count())
			},
		} {
			if client == "Proton" && s.ContentMode == spec.Binary {
				continue // this plugin gives readers no header of a message that came by AMQP 0.9.1
			}
			t.Run(name+", "+client, func(t *testing.T) {
				queue := "awkward-" + uuid.NewString()
				need.OK(t, need.Err(channel.QueueDeclare(queue, true, false, false, false, nil)))
				s.RabbitMQ.Addresses, s.RabbitMQ.RoutingKey = []string{broker.Address(rabbitmq.Plain)}, queue
				s.Auth = &spec.Auth{Type: spec.AuthPlain, Username: rabbitmq.Admin, SecretFile: password}
				sent := deliver(t, s)
				compare(t, read(t, queue), sent)
			})
		}
	}
}
