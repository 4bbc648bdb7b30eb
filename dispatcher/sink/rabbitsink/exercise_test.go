package rabbitsink

import (
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
)

// CONTRACT: C-32, C-70, C-73
func TestExercise(t *testing.T) {
	for _, mode := range []config.RabbitMQMode{config.RabbitMQBinary, config.RabbitMQStructured} {
		t.Run(string(mode), func(t *testing.T) {
			sinktest.Exercise(t, func(t *testing.T) sinktest.Destination { return destination(t, mode) })
		})
	}
}

// destination is an exchange of the real broker as sinktest.Exercise drives it.
func destination(t *testing.T, mode config.RabbitMQMode) sinktest.Destination {
	exchange, queue := newExchange(t, amqp.ExchangeTopic, "shop.#")
	cfg := plainConfig(t, "shop.orders")
	cfg.Exchange, cfg.Mode = exchange, mode
	cfg.Timeout = config.Duration(15 * time.Second)
	s := open(t, cfg)
	refused := map[uuid.UUID]bool{}
	s.routingKey = func(e *dispatcher.Event) (string, error) {
		if refused[e.ID] {
			return "elsewhere", nil
		}
		return "shop.orders", nil
	}
	return sinktest.Destination{
		Sink:   s,
		Refuse: func(id uuid.UUID) { refused[id] = true },
		Stop:   func() { flush(t); kill(t) },
		Start:  func() { restart(t) },
		Hang: func() <-chan struct{} {
			if err := send(t, s); err != nil { // makes the connection
				t.Fatal(err)
			}
			theBroker.Pause()
			t.Cleanup(theBroker.Resume)
			return watch(s)
		},
		Arrived: func() (got []sinktest.Message) {
			for _, d := range consume(t, queue) {
				got = append(got, received(t, d))
			}
			return got
		},
	}
}

// watch returns a channel that gets a value when the sink has begun to publish.
func watch(s *sink) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	channel := s.idle[len(s.idle)-1].channel
	before, begun := channel.GetNextPublishSeqNo(), make(chan struct{}, 1)
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for channel.GetNextPublishSeqNo() == before && !channel.IsClosed() {
			<-tick.C
		}
		begun <- struct{}{}
	}()
	return begun
}
