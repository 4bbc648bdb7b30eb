package redissink

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/outboxtest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/redis"
)

// An outbox arrives whole and in the order of its keys,
// though the server is killed half-way: redis-cli reads it back.
//
// CONTRACT: C-50, C-70, C-71
func TestNothingIsLost(t *testing.T) {
	events := outboxtest.Events(t, 20_000)
	srv := server(t, redis.Options{})
	outboxtest.Deliver(t, outboxtest.Run{
		Sink: open(t, settings(srv)), Events: events, Keys: events / 100, Server: srv,
		Arrived: func() []sinktest.Message { return readBack(t, srv) },
	})
}

// readBack reads the stream with Redis' own client.
func readBack(t *testing.T, srv *redis.Server) (got []sinktest.Message) {
	t.Helper()
	from := "-"
	for {
		out, err := srv.Tool(t.Context(), "redis-cli", "--json", "xrange", "orders", from, "+", "count", "5000").Output()
		if err != nil {
			t.Fatal(err)
		}
		var page []json.RawMessage
		if err := json.Unmarshal(out, &page); err != nil {
			t.Fatalf("%v: %.200s", err, out)
		}
		if len(page) == 0 {
			return got
		}
		for _, raw := range page {
			var id string
			var fields []string
			if err := json.Unmarshal(raw, &[]any{&id, &fields}); err != nil {
				t.Fatal(err)
			}
			m := sinktest.Message{Attributes: map[string]string{}}
			for i := 0; i+1 < len(fields); i += 2 {
				if fields[i] == "data" {
					m.Payload = fields[i+1]
				} else {
					m.Attributes[fields[i]] = fields[i+1]
				}
			}
			got = append(got, m)
			from = "(" + id
		}
	}
}

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
