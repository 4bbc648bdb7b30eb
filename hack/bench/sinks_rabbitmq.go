package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/hack/rabbitmq"
)

func rabbitmqDestination() destination {
	return destination{
		name: "RabbitMQ", events: 200_000, target: 12_000, start: startRabbitMQ,
		settings: "one node, a durable classic queue, persistent messages with confirms, all else default (4 channels); PerfTest with 4 producers, 500 unconfirmed each",
	}
}

func startRabbitMQ(ctx context.Context) (*destinationRun, error) {
	b, err := rabbitmq.Start(ctx, rabbitmq.Options{})
	if err != nil {
		return nil, err
	}
	if _, err := waiting(b.URL()); err != nil {
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
		sink: config.Sink{RabbitMQ: &config.RabbitMQSink{
			Addresses: []string{b.Address(rabbitmq.Plain)}, Auth: &config.RabbitMQAuth{UsernameFile: admin, PasswordFile: admin},
		}},
		arrived: func(context.Context) (int64, error) { return waiting(b.URL()) },
		tool: func(ctx context.Context, n int) (float64, error) {
			const producers = 4
			jars, err := perfTest(ctx)
			if err != nil {
				return 0, err
			}
			return rate(exec.CommandContext(ctx, "java", "-cp", jars, "com.rabbitmq.perf.PerfTest", "--uri", strings.TrimSuffix(b.URL(), "/"), "--queue", "tool", "--auto-delete", "false",
				"--flag", "persistent", "--confirm", "500", "--size", "200", "--consumers", "0", "--producers", strconv.Itoa(producers),
				"--pmessages", strconv.Itoa(n/producers)), `sending rate avg: ([0-9,.]+) msg/s`)
		},
		stop: func(ctx context.Context) error { return errors.Join(b.Stop(ctx), os.RemoveAll(login)) },
	}, nil
}

// waiting makes the queue, unless it is there, and returns how many messages it has.
func waiting(url string) (int64, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return 0, err
	}
	queue, err := ch.QueueDeclare(topic, true, false, false, false, nil)
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
