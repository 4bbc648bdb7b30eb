package redissink

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/redis"
)

// BenchmarkDeliver delivers batches of 500 events with 200 bytes of payload, each on the disk before it
// is confirmed, next to what Redis' own benchmark reaches there with as many bytes in as many fields and
// in the same pipelines: go test -run=- -bench=. -benchtime=100x ./dispatcher/internal/sinks/redissink
func BenchmarkDeliver(b *testing.B) {
	for _, workers := range []int{1, 4} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			sinktest.Bench(b, open(b, settings(server(b, redis.Options{}))), workers)
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
