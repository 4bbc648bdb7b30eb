package redissink

import (
	"encoding/json"
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
