package rabbitsink

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/outboxtest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
)

// A whole outbox arrives in a durable queue, in the order of its keys, though the broker ends half-way.
// The broker of the classic queue is killed. That of
// the quorum queue stops in order: after a kill, RabbitMQ 3.10 brings a quorum queue of one node back
// without a leader now and then, and confirms nothing until it is started once more.
//
// CONTRACT: C-50, C-70, C-71
func TestNothingIsLost(t *testing.T) {
	events := outboxtest.Events(t, 10_000)
	for kind, end := range map[string]func(){
		"classic": func() { flush(t); sinktest.Kill(t, broker(t))() },
		"quorum":  func() { control(t, "stop_app"); control(t, "start_app") },
	} {
		t.Run(kind, func(t *testing.T) {
			queue := newQueue(t, amqp.Table{"x-queue-type": kind})
			outboxtest.Deliver(t, outboxtest.Run{
				Sink: open(t, plainConfig(t, queue)), Events: events, Keys: 1000, Halfway: end,
				Arrived: func() (got []sinktest.Message) {
					for _, d := range consume(t, queue) {
						got = append(got, received(t, d))
					}
					return got
				},
			})
		})
	}
}

// BenchmarkDeliver delivers batches of 500 events with 200 bytes of payload into one quorum or
// classic queue of a real broker: go test -run=- -bench=. -benchtime=100x ./dispatcher/internal/sinks/rabbitsink
func BenchmarkDeliver(b *testing.B) {
	for _, kind := range []string{"quorum", "classic"} {
		b.Run(kind, func(b *testing.B) {
			sinktest.Bench(b, open(b, plainConfig(b, newQueue(b, amqp.Table{"x-queue-type": kind}))), 4)
		})
	}
}
