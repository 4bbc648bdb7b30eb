package kafkasink

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/hack/kafka"
)

// 100,000 events by four workers, as the engine would: one event of a key at a time, and again until
// it is confirmed. Half-way the broker is killed. Kafka's own consumer reads them back.
//
// CONTRACT: C-70, C-71
func TestNothingIsLost(t *testing.T) {
	const workers, rounds = 4, 50 // of batchSize keys each
	topic := newTopic(t, 6)
	s := open(t, plainConfig(t, topic))
	halfway := make(chan struct{}, workers)
	var doubtful sync.Map // events that failed once: they may be there twice
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for round := range rounds {
				batch := make([]*dispatcher.Event, batchSize)
				for i := range batch {
					batch[i] = newEvent()
					batch[i].AggregateID = fmt.Sprintf("key-%d-%d", w, i)
					batch[i].Payload = fmt.Appendf(nil, `{"n":%d}`, round)
				}
				if round == rounds/2 {
					halfway <- struct{}{}
				}
				for len(batch) > 0 {
					errs := s.Deliver(t.Context(), batch)
					var failed []*dispatcher.Event
					for i, e := range batch {
						if verify(t, errs[i]) != nil {
							failed = append(failed, e)
							doubtful.Store(e.ID.String(), true)
							e.Attempt++
						}
					}
					batch = failed
				}
			}
		})
	}
	<-halfway
	kill(t)
	restart(t)
	wg.Wait()
	checkAll(t, topic, workers*batchSize, rounds, func(id string) bool { _, ok := doubtful.Load(id); return ok })
}

// checkAll reads the topic with Kafka's console consumer: of each key the events 0 to rounds-1, in
// order, each in one partition, and twice only those that may be.
func checkAll(t *testing.T, topic string, keys, rounds int, mayRepeat func(id string) bool) {
	t.Helper()
	next, partition, seen := map[string]int{}, map[string]string{}, map[string]bool{}
	repeated := 0
	for _, line := range console(t, topic) {
		// Partition:0 <tab> ce_id:...,ce_... <tab> key <tab> value
		part := strings.Split(line, "\t")
		if len(part) != 4 {
			t.Fatalf("the consumer wrote %q", line)
		}
		var value struct{ N int }
		if err := json.Unmarshal([]byte(part[3]), &value); err != nil {
			t.Fatal(err)
		}
		id, key := header(part[1], "ce_id"), part[2]
		if header(part[1], "ce_aggregateid") != key {
			t.Fatalf("the key is not the aggregate id: %s", line)
		}
		if partition[key] == "" {
			partition[key] = part[0]
		}
		if partition[key] != part[0] {
			t.Fatalf("key %s is in %s and in %s", key, partition[key], part[0])
		}
		if seen[id] {
			repeated++
			if !mayRepeat(id) {
				t.Errorf("event %s is there twice, and its only delivery was confirmed", id)
			}
			continue
		}
		seen[id] = true
		if value.N != next[key] {
			t.Fatalf("key %s: event %d comes after %d", key, value.N, next[key]-1)
		}
		next[key]++
	}
	if len(seen) != keys*rounds || len(next) != keys {
		t.Errorf("%d events of %d keys arrived, want %d of %d", len(seen), len(next), keys*rounds, keys)
	}
	t.Logf("%d events in %d partitions, %d of them twice", len(seen), len(slices.Compact(slices.Sorted(maps.Values(partition)))), repeated)
}

func header(headers, name string) string {
	for h := range strings.SplitSeq(headers, ",") {
		if value, ok := strings.CutPrefix(h, name+":"); ok {
			return value
		}
	}
	return ""
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
		batch[i] = newEvent()
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
