package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
	"github.com/outbox-operator/outbox-operator/hack/servers/nats"
	"github.com/outbox-operator/outbox-operator/hack/servers/redis"
)

// output runs a command and returns what it printed.
func output(cmd *exec.Cmd) (string, error) {
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", cmd.Path, err, tailOf(string(out)))
	}
	return string(out), err
}

func tailOf(text string) string { return text[max(0, len(text)-500):] }

// rate reads the last number that pattern finds in what a tool printed.
func rate(cmd *exec.Cmd, pattern string) (float64, error) {
	out, err := output(cmd)
	if err != nil {
		return 0, err
	}
	found := regexp.MustCompile(pattern).FindAllStringSubmatch(out, -1)
	if len(found) == 0 {
		return 0, fmt.Errorf("%s printed no rate: %s", cmd.Path, tailOf(out))
	}
	return strconv.ParseFloat(strings.ReplaceAll(found[len(found)-1][1], ",", ""), 64)
}

// count reads a command's output, which is a number.
func count(cmd *exec.Cmd) (int64, error) {
	out, err := output(cmd)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(out), 10, 64)
}

func kafkaDestination() destination {
	return destination{
		name: "Kafka", events: 200_000, target: 20_000, start: startKafka,
		settings: "one broker, warm, 6 partitions, acks=all and idempotent, all else default on both sides (ours compresses with snappy); kafka-producer-perf-test",
	}
}

func startKafka(ctx context.Context) (*destinationRun, error) {
	b, err := kafka.Start(ctx, kafka.Options{})
	if err != nil {
		return nil, err
	}
	address := b.Address(kafka.Plain)
	for _, name := range []string{topic, "tool"} {
		create := b.Tool(ctx, "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", address, "--create", "--topic", name, "--partitions", "6")
		if _, err := output(create); err != nil {
			return nil, err
		}
	}
	if _, err := kafkaTool(ctx, b, 100_000); err != nil { // a broker that has just started compiles its code
		return nil, err
	}
	return &destinationRun{
		sink: config.Sink{Kafka: &config.KafkaSink{Brokers: []string{address}}},
		arrived: func(ctx context.Context) (sum int64, err error) {
			out, err := output(b.Tool(ctx, "org.apache.kafka.tools.GetOffsetShell", "--bootstrap-server", address, "--topic", topic))
			if err != nil {
				return 0, err
			}
			for _, line := range strings.Fields(out) { // topic:partition:offset
				n, err := strconv.ParseInt(line[strings.LastIndexByte(line, ':')+1:], 10, 64)
				if err != nil {
					return 0, fmt.Errorf("read the offsets: %w", err)
				}
				sum += n
			}
			return sum, nil
		},
		tool: func(ctx context.Context, n int) (float64, error) { return kafkaTool(ctx, b, n) },
		stop: b.Stop,
	}, nil
}

// kafkaTool runs Kafka's own benchmark tool into the topic tool.
func kafkaTool(ctx context.Context, b *kafka.Broker, n int) (float64, error) {
	return rate(b.Tool(ctx, "org.apache.kafka.tools.ProducerPerformance", "--topic", "tool", "--num-records", strconv.Itoa(n), "--record-size", "200",
		"--throughput", "-1", "--producer-props", "bootstrap.servers="+b.Address(kafka.Plain), "acks=all", "enable.idempotence=true"), `([0-9.]+) records/sec`)
}

func natsDestination() destination {
	return destination{
		name: "NATS JetStream", events: 200_000, target: 20_000, start: startNATS,
		settings: "one server, a stream in files, sync_interval as the server has it; nats bench js pub async, 1 client, batches of 500",
	}
}

func startNATS(ctx context.Context) (*destinationRun, error) {
	srv, err := nats.Start(ctx, nats.Options{})
	if err != nil {
		return nil, err
	}
	add, err := srv.Tool(ctx, "stream", "add", "ORDERS", "--subjects", topic, "--storage", "file", "--defaults")
	if err == nil {
		_, err = output(add)
	}
	return &destinationRun{
		sink: config.Sink{NATS: &config.NATSSink{Servers: []string{srv.URL()}}},
		arrived: func(ctx context.Context) (int64, error) {
			info, err := srv.Tool(ctx, "stream", "info", "ORDERS", "--json")
			if err != nil {
				return 0, err
			}
			out, err := output(info)
			var stream struct{ State struct{ Messages int64 } }
			if err == nil {
				err = json.Unmarshal([]byte(out), &stream)
			}
			return stream.State.Messages, err
		},
		tool: func(ctx context.Context, n int) (float64, error) {
			bench, err := srv.Tool(ctx, "bench", "js", "pub", "async", "tool", "--create", "--storage", "file", "--size", "200", "--msgs", strconv.Itoa(n), "--batch", "500", "--no-progress")
			if err != nil {
				return 0, err
			}
			return rate(bench, `stats: ([0-9,.]+) msgs/sec`)
		},
		stop: srv.Stop,
	}, err
}

func redisDestination() destination {
	return destination{
		name: "Redis", events: 200_000, target: 25_000, start: startRedis,
		settings: "one server, appendonly with appendfsync always, all else default; redis-benchmark XADD, 16 clients, pipelines of 128",
	}
}

func startRedis(ctx context.Context) (*destinationRun, error) {
	srv, err := redis.Start(ctx, redis.Options{})
	if err != nil {
		return nil, err
	}
	return &destinationRun{
		sink:    config.Sink{Redis: &config.RedisSink{Addresses: []string{srv.Address}}},
		arrived: func(ctx context.Context) (int64, error) { return count(srv.Tool(ctx, "redis-cli", "xlen", topic)) },
		tool: func(ctx context.Context, n int) (float64, error) {
			return rate(srv.Tool(ctx, "redis-benchmark", "-q", "-n", strconv.Itoa(n), "-c", "16", "-P", "128", "xadd", "tool", "*", "data", string(payload(1, 200))),
				`([0-9.]+) requests per second`)
		},
		stop: srv.Stop,
	}, nil
}
