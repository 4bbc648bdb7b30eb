package natssink

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/outboxtest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/nats"
)

// A whole outbox through the engine into a stream, whose server is killed half-way. Another client reads
// it back: each event once, because the stream remembers the ids of what it stored and did not confirm.
//
// CONTRACT: C-50, C-70, C-71
func TestNothingIsLost(t *testing.T) {
	events := outboxtest.Events(t, 20_000)
	for name, opts := range map[string]nats.Options{"the server's own sync": {}, "sync always": {Sync: true}} {
		t.Run(name, func(t *testing.T) {
			events := events
			if opts.Sync {
				events /= 10 // each message is written through to the disk
			}
			srv := start(t, opts)
			stream := newStream(t, srv, func(c *jetstream.StreamConfig) { c.Subjects = append(c.Subjects, "orders") })
			cfg := plainConfig(srv, stream)
			cfg.Subject, cfg.Stream = "", stream
			s, err := New(cfg, nil)
			if err != nil {
				t.Fatal(err)
			}
			outboxtest.Deliver(t, outboxtest.Run{
				Sink: s, Events: events, Keys: 1000, Server: srv,
				Arrived: func() (got []sinktest.Message) {
					seen := map[string]bool{}
					for _, m := range consume(t, srv, stream) {
						one := message(t, m)
						if id := one.Attributes["id"]; seen[id] {
							t.Errorf("event %s is stored twice", id)
						} else {
							seen[id] = true
						}
						got = append(got, one)
					}
					return got
				},
			})
		})
	}
}
