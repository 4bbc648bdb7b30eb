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
	d := &memory{t: t}
	outboxtest.Deliver(t, outboxtest.Run{
		Sink: d, Events: 2000, Keys: 20, Arrived: func() []sinktest.Message { return d.messages },
		Halfway: func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.fail = 3
		},
	})
}

// memory keeps what arrives.
type memory struct {
	t *testing.T

	mu       sync.Mutex
	fail     int // so many deliveries arrive and are not confirmed
	messages []sinktest.Message
}

func (m *memory) Deliver(_ context.Context, batch []*dispatcher.Event) []error {
	m.mu.Lock()
	defer m.mu.Unlock()
	errs := make([]error, len(batch))
	for i, e := range batch {
		ce := cloudevent.New(e)
		m.messages = append(m.messages, sinktest.MessageOf(m.t, binding.ToMessage(&ce)))
		if m.fail > 0 {
			m.fail--
			errs[i] = errors.New("not confirmed; try again")
		}
	}
	return errs
}

func (*memory) Probe(context.Context) error { return nil }
func (*memory) BatchSize() int              { return 10 }
func (*memory) Close(context.Context) error { return nil }
