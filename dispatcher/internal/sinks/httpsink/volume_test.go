package httpsink

import (
	"testing"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/outboxtest"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// A whole outbox arrives in the order of its keys, though the server cuts all connections half-way and is
// gone for a moment.
//
// CONTRACT: C-50, C-70, C-71
func TestNothingIsLost(t *testing.T) {
	events := outboxtest.Events(t, 20_000)
	for _, mode := range []config.ContentMode{config.Binary, config.Batch} {
		t.Run(string(mode), func(t *testing.T) {
			d := destination(t, config.HTTPSink{ContentMode: mode}, nil)
			outboxtest.Deliver(t, outboxtest.Run{
				Sink: d.Sink, Events: events, Keys: 1000, Arrived: d.Arrived,
				Halfway: func() { d.Stop(); d.Start() },
			})
		})
	}
}
