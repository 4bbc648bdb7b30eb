package natssink

import (
	"fmt"
	"strings"
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

// The streams of the benchmarks are in files, on one real server: with the server's own sync, and with
// each message written through to the disk before it is confirmed.
var kinds = map[string]nats.Options{"sync=default": {}, "sync=always": {Sync: true}}

// BenchmarkDeliver delivers batches of 500 events with 200 bytes of payload:
// go test -run=- -bench=. -benchtime=200x ./dispatcher/internal/sinks/natssink
func BenchmarkDeliver(b *testing.B) {
	for kind, opts := range kinds {
		for _, workers := range []int{1, 4} {
			b.Run(fmt.Sprintf("%s/workers=%d", kind, workers), func(b *testing.B) {
				srv := start(b, opts)
				sinktest.Bench(b, open(b, plainConfig(srv, newStream(b, srv, nil))), workers)
			})
		}
	}
}

// BenchmarkOwnTool is what the nats command line reaches there: nats bench js pub async, with messages of
// 200 bytes, and once as large as ours are with their headers.
func BenchmarkOwnTool(b *testing.B) {
	s := open(b, plainConfig(server(b), "a"))
	m, err := s.message(sinktest.BenchBatch(s)[0])
	if err != nil {
		b.Fatal(err)
	}
	for kind, opts := range kinds {
		for _, bytes := range []int{200, size(m)} {
			b.Run(fmt.Sprintf("%s/bytes=%d", kind, bytes), func(b *testing.B) {
				srv := start(b, opts)
				stream := newStream(b, srv, func(c *jetstream.StreamConfig) { c.Subjects = []string{"bench"} })
				cmd, err := srv.Tool(b.Context(), "bench", "js", "pub", "async", "bench", "--stream", stream, "--batch", fmt.Sprint(batchSize),
					"--msgs", fmt.Sprint(b.N*batchSize), "--size", fmt.Sprint(bytes), "--no-progress")
				if err != nil {
					b.Fatal(err)
				}
				out, err := cmd.CombinedOutput()
				if err != nil {
					b.Fatalf("%v: %s", err, out)
				}
				b.Log(strings.TrimSpace(string(out)))
			})
		}
	}
}
