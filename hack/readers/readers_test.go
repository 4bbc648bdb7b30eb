// Package readers reads messages as consumers in other languages do. In Python: with the CloudEvents SDK and the clients
// that brokers have there, which are confluent-kafka, pika and, for AMQP 1.0, Qpid Proton; from the Python Package Index,
// in an environment of their own in the user's cache. In Java: with the CloudEvents SDK and Kafka's own client, from
// Maven's repository.
package readers

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
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
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
	"github.com/outbox-operator/outbox-operator/hack/servers/rabbitmq"
	"github.com/outbox-operator/outbox-operator/hack/testing/languages"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

var (
	// The runtime dependencies of io.cloudevents:cloudevents-kafka and cloudevents-json-jackson, of
	// org.apache.kafka:kafka-clients and of org.slf4j:slf4j-nop.
	//
	//go:embed jars.sha256
	jars string
	//go:embed Reader.java
	reader string
	//go:embed requirements.txt
	requirements []byte
	//go:embed readers.py
	program string
)

// timeout bounds a broker's start and a reader's reading.
const timeout = need.Install

// running is a reader that runs.
type running struct {
	cmd    *exec.Cmd
	lines  chan []byte // one for each event
	errors bytes.Buffer
}

// start starts the reader in Python with the arguments that readers.py describes: it reads with a client of the first one.
func start(t *testing.T, args ...string) *running {
	t.Helper()
	bin, err := languages.PythonEnvironment(t.Context(), "readers", requirements)
	if err != nil {
		need.Server(t, fmt.Errorf("%w (%w)", languages.ErrMissing, err), languages.ErrMissing)
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	return run(t, exec.CommandContext(ctx, filepath.Join(bin, "python"), append([]string{"-c", program}, args...)...))
}

// startJava starts the reader in Java with the arguments that Reader.java describes.
func startJava(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	cmd, err := languages.Java(ctx, jars, t.TempDir(), "Reader", reader, args...)
	need.Server(t, err, languages.ErrMissing)
	return run(t, cmd)
}

func run(t *testing.T, cmd *exec.Cmd) *running {
	t.Helper()
	r := &running{cmd: cmd, lines: make(chan []byte, 10_000)} // so that it never waits for this test
	out, err := cmd.StdoutPipe()
	need.OK(t, err)
	cmd.Stderr = &r.errors
	need.OK(t, cmd.Start())
	go func() {
		defer close(r.lines)
		for in := bufio.NewReader(out); ; {
			line, err := in.ReadBytes('\n')
			if err != nil {
				return
			}
			r.lines <- bytes.TrimSuffix(line, []byte{'\n'})
		}
	}()
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
func compare(t *testing.T, r *running, sent map[string]sinktest.Awkward) {
	t.Helper()
	for line := range r.lines {
		var e struct {
			Attributes map[string]string `json:"attributes"` // as text; the time is in the form of RFC 3339
			Data       []byte            `json:"data"`
			Key        string            `json:"key"` // a record's, for Kafka
		}
		need.OK(t, json.Unmarshal(line, &e))
		id := e.Attributes["id"]
		a, ok := sent[id]
		if !ok {
			t.Errorf("%q was read, and never sent, or read before", id)
			continue
		}
		delete(sent, id)
		at, err := time.Parse(time.RFC3339Nano, e.Attributes["time"])
		need.That(t, err == nil, "%s: the time: %v", a.Name, err)
		e.Attributes["time"] = at.UTC().Format(time.RFC3339Nano)
		a.Check(t, sinktest.Message{Attributes: e.Attributes, Payload: string(e.Data)})
		if e.Key != "" && e.Key != a.Event.Key() {
			t.Errorf("%s: the record's key is %.100q, want %.100q", a.Name, e.Key, a.Event.Key())
		}
	}
	if err := r.cmd.Wait(); err != nil {
		t.Errorf("the reader: %v: %s", err, r.errors.Bytes())
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
			port := string(<-r.lines)
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
			for language, r := range map[string]*running{"Python": start(t, "kafka", address, topic, count()), "Java": startJava(t, address, topic, count())} {
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
		for client, read := range map[string]func(t *testing.T, queue string) *running{
			"pika": func(t *testing.T, queue string) *running {
				return start(t, "rabbitmq", broker.URL(), queue, count(), s.RabbitMQ.AttributePrefix)
			},
			"Proton": func(t *testing.T, queue string) *running {
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
