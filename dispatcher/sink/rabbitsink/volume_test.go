package rabbitsink

import (
	"cmp"
	"os"
	"strconv"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/outboxtest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
)

// A whole outbox arrives in a durable queue, in the order of its keys, though the broker is killed
// half-way. OUTBOX_TEST_EVENTS says how many events there are.
//
// CONTRACT: C-50, C-70, C-71
func TestNothingIsLost(t *testing.T) {
	events, err := strconv.Atoi(cmp.Or(os.Getenv("OUTBOX_TEST_EVENTS"), "10000"))
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			queue := newQueue(t, amqp.Table{"x-queue-type": kind})
			outboxtest.Deliver(t, outboxtest.Run{
				Sink: open(t, plainConfig(t, queue)), Events: events, Keys: 1000, Halfway: func() { kill(t); restart(t) },
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
