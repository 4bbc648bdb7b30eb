package natssink

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/nats"
)

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
