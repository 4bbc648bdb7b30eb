package cloudsink

import (
	"testing"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
)

// CONTRACT: C-32, C-70, C-71, C-73
func TestExercise(t *testing.T) {
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
