package kafkasink

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/outboxtest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
)

// A whole outbox. Half-way the broker is killed. Kafka's own consumer reads them back.
//
// CONTRACT: C-50, C-70, C-71
func TestNothingIsLost(t *testing.T) {
	events := outboxtest.Events(t, 100_000)
	topic := newTopic(t, 6)
	s, err := New(plainConfig(t, topic), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	outboxtest.Deliver(t, outboxtest.Run{
		Sink: s, Events: events, Keys: 1000, Server: theBroker.Broker,
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
		if len(part) != 4 {
			t.Fatalf("the consumer wrote %q", line)
		}
		m := sinktest.Message{Attributes: map[string]string{}, Payload: part[3]}
		for h := range strings.SplitSeq(part[1], ",") {
			name, value, _ := strings.Cut(strings.TrimPrefix(h, "ce_"), ":")
			m.Attributes[name] = value
		}
		key := part[2]
		if m.Attributes["partitionkey"] != key {
			t.Fatalf("the record's key is %s: %s", key, line)
		}
		if partition[key] == "" {
			partition[key] = part[0]
		}
		if partition[key] != part[0] {
			t.Fatalf("key %s is in %s and in %s", key, partition[key], part[0])
		}
		messages[i] = m
	}
	if n := len(slices.Compact(slices.Sorted(maps.Values(partition)))); n != 6 {
		t.Errorf("the keys are in %d partitions, want all 6", n)
	}
	return messages
}

// console reads a topic with Kafka's own consumer.
func console(t *testing.T, topic string) (lines []string) {
	t.Helper()
	ends, err := theBroker.admin.ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	n := int64(0)
	for _, p := range ends[topic] {
		n += p.Offset
	}
	cmd := theBroker.Tool(t.Context(), "org.apache.kafka.tools.consumer.ConsoleConsumer",
		"--bootstrap-server", theBroker.Address(kafka.Plain), "--topic", topic, "--from-beginning",
		"--max-messages", strconv.FormatInt(n, 10), "--timeout-ms", "60000",
		"--property", "print.partition=true", "--property", "print.headers=true", "--property", "print.key=true")
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("Kafka's console consumer: %v: %s", err, complaints.String())
	}
	for scan := bufio.NewScanner(bytes.NewReader(out)); scan.Scan(); {
		lines = append(lines, scan.Text())
	}
	return lines
}

// The same key goes to the same partition as with Kafka's own producer.
//
// CONTRACT: C-71
func TestPartitionOfJavaClient(t *testing.T) {
	topic := newTopic(t, 7)
	s := open(t, config.KafkaSink{Brokers: []string{broker(t).Address(kafka.Plain)}, Topic: topic})
	var typed strings.Builder
	batch := make([]*dispatcher.Event, 200)
	for i := range batch {
		batch[i] = sinktest.NewEvent()
		batch[i].PartitionKey = []string{"customer-" + strconv.Itoa(i), uuid.NewString(), "größe " + strconv.Itoa(i)}[i%3]
		fmt.Fprintf(&typed, "%s\t{}\n", batch[i].PartitionKey)
	}
	for _, err := range s.Deliver(t.Context(), batch) {
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	java := theBroker.Tool(ctx, "org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", theBroker.Address(kafka.Plain),
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
	if len(ours) != len(batch) || !maps.Equal(ours, theirs) {
		t.Errorf("ours  %v\ntheirs %v", ours, theirs)
	}
}

// BenchmarkDeliver delivers batches of 500 events with 200 bytes of payload to one real broker, next to
// what Kafka's own producer benchmark reaches there: once with records of 200 bytes, and once as
// large as ours are with their attributes: go test -run=- -bench=. -benchtime=200x ./dispatcher/internal/sinks/kafkasink
func BenchmarkDeliver(b *testing.B) {
	for _, workers := range []int{1, 4} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			sinktest.Bench(b, open(b, plainConfig(b, newTopic(b, 6))), workers)
		})
	}
}

func BenchmarkKafkasOwn(b *testing.B) {
	s := open(b, plainConfig(b, newTopic(b, 1)))
	r, err := s.record(b.Context(), time.Now(), sinktest.BenchBatch(s)[0])
	if err != nil {
		b.Fatal(err)
	}
	for _, bytes := range []int{200, size(r)} {
		b.Run(fmt.Sprintf("bytes=%d", bytes), func(b *testing.B) {
			cmd := theBroker.Tool(b.Context(), "org.apache.kafka.tools.ProducerPerformance", "--topic", newTopic(b, 6),
				"--num-records", fmt.Sprint(b.N*batchSize), "--record-size", fmt.Sprint(bytes), "--throughput", "-1",
				"--producer-props", "bootstrap.servers="+theBroker.Address(kafka.Plain), "acks=all", "compression.type=snappy", "linger.ms=2")
			out, err := cmd.CombinedOutput()
			if err != nil {
				b.Fatalf("%v: %s", err, out)
			}
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			b.Log(regexp.MustCompile(`^[^,]*, [^,]*`).FindString(lines[len(lines)-1]))
		})
	}
}
