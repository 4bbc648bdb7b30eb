package outboxtest_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/cloudevents/sdk-go/v2/binding"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudevent"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/outboxtest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// A destination that is unreachable for a while, and forgets what it confirmed last, gets everything.
func TestDeliverBringsEverythingAfterAnOutage(t *testing.T) {
	var mu sync.Mutex
	var messages []sinktest.Message
	fail := 0 // deliveries that arrive and are not confirmed
	destination := &sinktest.Func{Max: 10, Respond: func(_ context.Context, e *dispatcher.Event) error {
		mu.Lock()
		defer mu.Unlock()
		ce := cloudevent.New(e)
		messages = append(messages, sinktest.MessageOf(t, binding.ToMessage(&ce)))
		if fail > 0 {
			fail--
			return errors.New("not confirmed; try again")
		}
		return nil
	}}
	outboxtest.Deliver(t, outboxtest.Run{
		Sink: destination, Events: 2000, Keys: 20, Arrived: func() []sinktest.Message { return messages },
		Halfway: func() {
			mu.Lock()
			defer mu.Unlock()
			fail = 3
		},
	})
}
