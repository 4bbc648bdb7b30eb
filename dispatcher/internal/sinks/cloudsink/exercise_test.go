package cloudsink

import (
	"testing"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/outboxtest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
)

// CONTRACT: C-32, C-70, C-71, C-73
func TestCloudSinksMeetTheSinkContract(t *testing.T) {
	places := map[string]func(*testing.T) place{
		"SQS":      func(t *testing.T) place { return newSQS(t, "") },
		"SQS FIFO": func(t *testing.T) place { return newSQS(t, ".fifo") },
		"SNS":      func(t *testing.T) place { return newSNS(t, "") },
		"SNS FIFO": func(t *testing.T) place { return newSNS(t, ".fifo") },
	}
	for _, mode := range []config.ContentMode{config.Binary, config.Structured} {
		places["PubSub "+string(mode)] = func(t *testing.T) place {
			p, _ := newPubSub(t, mode)
			return p
		}
		places["ServiceBus "+string(mode)] = func(t *testing.T) place { return newServiceBusPlace(t, mode) }
	}
	for name, open := range places {
		t.Run(name, func(t *testing.T) {
			sinktest.Exercise(t, func(t *testing.T) sinktest.Destination { return open(t).destination() })
		})
	}
}

// A whole outbox arrives, in the order of its keys, though every connection breaks half-way. The
// stand-ins are slow, so the events are few.
//
// CONTRACT: C-27, C-50, C-70, C-71
func TestOutboxArrivesThoughConnectionsBreak(t *testing.T) {
	for name, test := range map[string]struct {
		open   func(*testing.T) place
		events int
	}{
		"SQS FIFO":   {func(t *testing.T) place { return newSQS(t, ".fifo") }, 100},
		"SNS FIFO":   {func(t *testing.T) place { return newSNS(t, ".fifo") }, 100},
		"PubSub":     {func(t *testing.T) place { p, _ := newPubSub(t, config.Binary); return p }, 5000},
		"ServiceBus": {func(t *testing.T) place { return newServiceBusPlace(t, config.Binary) }, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			events := outboxtest.Events(t, test.events)
			p := test.open(t)
			outboxtest.Deliver(t, outboxtest.Run{
				Sink: p.sink, Events: events, Keys: events / 10, Arrived: p.arrived,
				Halfway: func() {
					p.close()
					p.open()
				},
			})
		})
	}
}
