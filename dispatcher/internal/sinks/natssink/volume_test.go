package natssink

import (
	"os"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/outboxtest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/nats"
)

// A whole outbox through the engine into a stream, whose server is killed half-way. Another client reads
// it back: each event once, because the stream remembers the ids of what it stored and did not confirm.
// 20,000 events, or OUTBOX_TEST_EVENTS; a tenth where each is written through to the disk.
//
// CONTRACT: C-50, C-70, C-71
func TestNothingIsLost(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and shows no race that the others do not")
	}
	events := 20_000
	if n, err := strconv.Atoi(os.Getenv("OUTBOX_TEST_EVENTS")); err == nil {
		events = n
	}
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
				Sink: s, Events: events, Keys: 1000,
				Halfway: func() {
					srv.Kill()
					restart(t, srv)
				},
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
