package rabbitsink

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
)

// BenchmarkDeliver delivers batches of 500 events with 200 bytes of payload into one quorum or
// classic queue of a real broker: go test -run=- -bench=. -benchtime=100x ./dispatcher/internal/sinks/rabbitsink
func BenchmarkDeliver(b *testing.B) {
	for _, kind := range []string{"quorum", "classic"} {
		b.Run(kind, func(b *testing.B) {
			sinktest.Bench(b, open(b, plainConfig(b, newQueue(b, amqp.Table{"x-queue-type": kind}))), 4)
		})
	}
}
