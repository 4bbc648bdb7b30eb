package kafkasink

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/kafka"
)

// BenchmarkDeliver delivers batches of 500 events with 200 bytes of payload to one real broker, beside
// what Kafka's own producer benchmark reaches there: once with records of 200 bytes, and once as
// large as ours are with their attributes: go test -run=- -bench=. -benchtime=200x ./dispatcher/sink/kafkasink
func BenchmarkDeliver(b *testing.B) {
	for _, workers := range []int{1, 4} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			s := open(b, plainConfig(b, newTopic(b, 6)))
			batch := benchBatch()
			s.Deliver(b.Context(), batch)
			b.ResetTimer()
			before := cpu(b)
			var wg sync.WaitGroup
			for range workers {
				wg.Go(func() {
					for range b.N {
						for _, err := range s.Deliver(b.Context(), batch) {
							if err != nil {
								b.Error(err)
							}
						}
					}
				})
			}
			wg.Wait()
			events := float64(b.N * workers * batchSize)
			b.ReportMetric(events/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/events, "cpu-ns/event")
		})
	}
}

func BenchmarkKafkasOwn(b *testing.B) {
	s := open(b, plainConfig(b, newTopic(b, 1)))
	r, err := s.record(b.Context(), benchBatch()[0])
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

// cpu is what this process has used, without the broker's.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchBatch() []*dispatcher.Event {
	batch := make([]*dispatcher.Event, batchSize)
	for i := range batch {
		e := sinktest.NewEvent()
		e.AggregateID, e.EventType, e.AggregateType = fmt.Sprintf("order-%d", i), "OrderPlaced", "order"
		e.Payload = []byte(`"` + strings.Repeat("7", 198) + `"`)
		e.Headers = map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
		batch[i] = e
	}
	return batch
}
