package rabbitsink

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// BenchmarkDeliver delivers batches of 500 events with 200 bytes of payload into one quorum or
// classic queue of a real broker: go test -run=- -bench=. -benchtime=100x ./dispatcher/sink/rabbitsink
func BenchmarkDeliver(b *testing.B) {
	for _, kind := range []string{"quorum", "classic"} {
		b.Run(kind, func(b *testing.B) {
			const workers = 4
			s := open(b, plainConfig(b, newQueue(b, amqp.Table{"x-queue-type": kind})))
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

// cpu is what this process has used, without the broker's.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchBatch() []*dispatcher.Event {
	batch := newEvents(batchSize)
	for i, e := range batch {
		e.AggregateID, e.EventType, e.AggregateType = fmt.Sprintf("order-%d", i), "OrderPlaced", "order"
		e.Payload = []byte(`"` + strings.Repeat("7", 198) + `"`)
		e.Headers = map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
	}
	return batch
}
