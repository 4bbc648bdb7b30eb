package kafkasink

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/kafka"
)

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
	r, err := s.record(b.Context(), sinktest.BenchBatch(s)[0])
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
