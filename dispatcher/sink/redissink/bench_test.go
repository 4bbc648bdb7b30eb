package redissink

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"

	"github.com/outbox-operator/outbox-operator/hack/redis"
)

// BenchmarkDeliver delivers batches of 500 events with 200 bytes of payload, each on the disk before it
// is answered, beside what Redis' own benchmark reaches there with as many bytes in as many fields and
// in the same pipelines: go test -run=- -bench=. -benchtime=100x ./dispatcher/sink/redissink
func BenchmarkDeliver(b *testing.B) {
	for _, workers := range []int{1, 4} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			s := open(b, settings(server(b, redis.Options{})))
			batch := newEvents(batchSize)
			for i, e := range batch {
				e.AggregateID, e.EventType, e.AggregateType = fmt.Sprintf("order-%d", i), "OrderPlaced", "order"
				e.Payload = []byte(`"` + strings.Repeat("7", 198) + `"`)
				e.Headers = map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
			}
			s.Deliver(b.Context(), batch)
			b.ResetTimer()
			before := cpu(b)
			var wg sync.WaitGroup
			for range workers {
				wg.Go(func() {
					for range b.N {
						for _, err := range s.Deliver(b.Context(), batch) {
							if err != nil {
								b.Error(err)
							}
						}
					}
				})
			}
			wg.Wait()
			events := float64(b.N * workers * batchSize)
			b.ReportMetric(events/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/events, "cpu-ns/event")
		})
	}
}

func BenchmarkRedisOwn(b *testing.B) {
	for _, workers := range []int{1, 4} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			srv := server(b, redis.Options{})
			en, err := open(b, settings(srv)).entry(sinktest.NewEvent())
			if err != nil {
				b.Fatal(err)
			}
			args := []string{"-c", fmt.Sprint(workers), "-P", fmt.Sprint(batchSize), "-n", fmt.Sprint(b.N * workers * batchSize), "-q"}
			for _, arg := range en.args[:len(en.args)-1] {
				args = append(args, fmt.Sprint(arg))
			}
			out, err := srv.Tool(b.Context(), "redis-benchmark", append(args, strings.Repeat("7", 200))...).CombinedOutput()
			if err != nil {
				b.Fatalf("%v: %s", err, out)
			}
			text := string(out)
			b.Log(text[strings.LastIndex(strings.TrimSpace(text), ":")+1:])
		})
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
