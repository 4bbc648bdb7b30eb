package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/hack/servers/rabbitmq"
)

// The kinds of durable queues.
const (
	quorum  = amqp.QueueTypeQuorum
	classic = amqp.QueueTypeClassic
)

// perfProducers are as many as our channels, each with as many messages as a delivery has.
const perfProducers = 4

// perfHeaders are as many as our messages have, and as large: RabbitMQ reads each.
const perfHeaders = "ce-specversion=1.0,ce-id=0198b6a2-7d3e-7c41-9f0a-2b1c3d4e5f60,ce-source=/outbox/bench/orders," +
	"ce-type=orders,ce-time=2026-01-02T03:04:05.678901Z,ce-trackingid=0198b6a2-7d3e-7c41-9f0a-2b1c3d4e5f60," +
	"ce-fencingtoken=1,ce-attempt=1,ce-outboxnamespace=bench,ce-topic=orders," +
	"ce-sequence=0000000000000123456,ce-partitionkey=0198b6a2-7d3e-7c41-9f0a-2b1c3d4e5f60"

func rabbitmqDestination(kind string) destination {
	return destination{
		name: "RabbitMQ, " + kind + " queue", events: 200_000, target: 12_000,
		start: func(ctx context.Context) (*destinationRun, error) { return startRabbitMQ(ctx, kind) },
		settings: fmt.Sprintf("one node, a durable %s queue, persistent messages with confirms, all else default (%d channels); PerfTest with %d producers, 500 unconfirmed each, and our headers",
			kind, perfProducers, perfProducers),
	}
}

func startRabbitMQ(ctx context.Context, kind string) (*destinationRun, error) {
	b, err := rabbitmq.Start(ctx, rabbitmq.Options{})
	if err != nil {
		return nil, err
	}
	if _, err := waiting(b.URL(), kind); err != nil {
		return nil, errors.Join(err, b.Stop(ctx))
	}
	login, err := os.MkdirTemp("", "outbox-bench-*")
	if err == nil {
		err = os.WriteFile(filepath.Join(login, "admin"), []byte(rabbitmq.Admin), 0o600)
	}
	if err != nil {
		return nil, errors.Join(err, b.Stop(ctx))
	}
	admin := filepath.Join(login, "admin")
	return &destinationRun{
		sink: config.Sink{
			RabbitMQ: &config.RabbitMQSink{Addresses: []string{b.Address(rabbitmq.Plain)}},
			Auth:     &config.Auth{Type: config.AuthPlain, UsernameFile: admin, SecretFile: admin},
		},
		arrived: func(context.Context) (int64, error) { return waiting(b.URL(), kind) },
		tool: func(ctx context.Context, n int) (float64, error) {
			jars, err := perfTest(ctx)
			if err != nil {
				return 0, err
			}
			return rate(exec.CommandContext(ctx, "java", "-cp", jars, "com.rabbitmq.perf.PerfTest", "--uri", strings.TrimSuffix(b.URL(), "/"), "--queue", "tool", "--auto-delete", "false",
				"--queue-args", "x-queue-type="+kind, "--flag", "persistent", "--confirm", "500", "--size", "200", "--message-properties", perfHeaders, "--consumers", "0", "--producers", strconv.Itoa(perfProducers),
				"--pmessages", strconv.Itoa(n/perfProducers)), `sending rate avg: ([0-9,.]+) msg/s`)
		},
		stop: func(ctx context.Context) error { return errors.Join(b.Stop(ctx), os.RemoveAll(login)) },
	}, nil
}

// waiting makes the queue, unless it is there, and returns how many messages it has.
func waiting(url, kind string) (int64, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		return 0, err
	}
	queue, err := ch.QueueDeclare(topic, true, false, false, false, amqp.Table{amqp.QueueTypeArg: kind})
	return int64(queue.Messages), err
}

// perfTest returns the class path of RabbitMQ's own benchmark tool, fetched with Maven when it is not in
// the user's cache.
func perfTest(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "outbox-operator", "perftest-2.22.1")
	if _, err := os.Stat(dir); err != nil {
		partial := dir + ".partial"
		_, err := output(exec.CommandContext(ctx, "mvn", "--batch-mode", "--quiet", "--file", "perftest/pom.xml",
			"org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+partial))
		if err == nil {
			err = os.Rename(partial, dir)
		}
		if err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, "*"), nil
}
