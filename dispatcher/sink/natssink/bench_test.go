package natssink

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/nats"
)

// The streams of the benchmarks are in files, on one real server: with the server's own sync, and with
// each message written through to the disk before it is confirmed.
var kinds = map[string]nats.Options{"sync=default": {}, "sync=always": {Sync: true}}

// BenchmarkDeliver delivers batches of 500 events with 200 bytes of payload:
// go test -run=- -bench=. -benchtime=200x ./dispatcher/sink/natssink
func BenchmarkDeliver(b *testing.B) {
	for kind, opts := range kinds {
		for _, workers := range []int{1, 4} {
			b.Run(fmt.Sprintf("%s/workers=%d", kind, workers), func(b *testing.B) {
				srv := start(b, opts)
				s := open(b, plainConfig(srv, newStream(b, srv, nil)))
				var own [4]events
				for i := range own {
					own[i] = newBatch()
				}
				b.ResetTimer()
				before := cpu(b)
				var wg sync.WaitGroup
				for w := range workers {
					wg.Go(func() {
						for range b.N {
							own[w].renew()
							for _, err := range s.Deliver(b.Context(), own[w]) {
								if err != nil {
									b.Error(err)
								}
							}
						}
					})
				}
				wg.Wait()
				total := float64(b.N * workers * batchSize)
				b.ReportMetric(total/b.Elapsed().Seconds(), "events/s")
				b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/total, "cpu-ns/event")
			})
		}
	}
}

// BenchmarkOwnTool is what the nats command line reaches there: nats bench js pub async, with messages of
// 200 bytes, and once as large as ours are with their headers.
func BenchmarkOwnTool(b *testing.B) {
	m, err := open(b, plainConfig(server(b), "a")).message(newBatch()[0])
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

// cpu is what this process has used, without the server's.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

type events []*dispatcher.Event

func newBatch() events {
	batch := make(events, batchSize)
	for i := range batch {
		e := sinktest.NewEvent()
		e.AggregateID, e.EventType, e.AggregateType = fmt.Sprintf("order-%d", i), "OrderPlaced", "order"
		e.Payload = []byte(`"` + strings.Repeat("7", 198) + `"`)
		e.Headers = map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
		batch[i] = e
	}
	return batch
}

// renew gives the events new ids: the stream would know the old ones.
func (batch events) renew() {
	for _, e := range batch {
		e.ID = sinktest.NewEvent().ID
	}
}
