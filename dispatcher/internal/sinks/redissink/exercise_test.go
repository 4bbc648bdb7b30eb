package redissink

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/outboxtest"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/redis"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// CONTRACT: C-32, C-70, C-71, C-73
func TestRedisSinkMeetsTheSinkContract(t *testing.T) {
	srv := server(t, redis.Options{})
	for _, mode := range []spec.ContentMode{spec.Binary, spec.Structured} {
		t.Run(string(mode), func(t *testing.T) {
			sinktest.Exercise(t, func(t *testing.T) sinktest.Destination {
				cfg := settings(srv)
				cfg.ContentMode = mode
				return destination(t, srv, cfg)
			})
		})
	}
	t.Run("TLS", func(t *testing.T) {
		ca := sinktest.NewAuthority(t, "redis")
		leaf := ca.Sign(t, "redis", sinktest.InAnHour())
		srv := server(t, redis.Options{TLS: &redis.TLS{CertPEM: leaf.CertPEM, KeyPEM: leaf.KeyPEM}})
		cfg := settings(srv)
		cfg.TLS = &spec.TLS{CAFile: sinktest.File(t, "ca.crt", ca.PEM)}
		sinktest.Exercise(t, func(t *testing.T) sinktest.Destination { return destination(t, srv, cfg) })
	})
}

// destination is a stream of the real server as sinktest.Exercise drives it.
func destination(t *testing.T, srv *redis.Server, cfg spec.RedisSink) sinktest.Destination {
	do(t, srv, "set", "taken", "no stream")
	stream := "orders-" + uuid.NewString()
	cfg.Stream = stream
	s := open(t, cfg)
	var start func()
	return sinktest.Destination{
		Sink:    s,
		Refuse:  sinktest.Divert(&s.stream.Of, "taken"),
		Refused: dispatcher.Cause{Class: "redis", Code: "WRONGTYPE"},
		Stop:    func() { start = sinktest.Kill(t, srv) },
		Start:   func() { start() },
		Idle:    func() { killClients(t, srv) },
		Remedy:  "; set stream to another key",
		Missing: func() func() {
			do(t, srv, "set", stream, "no stream")
			return func() { do(t, srv, "del", stream) }
		},
		Hang: func() <-chan struct{} {
			return sinktest.HangServer(t, s, srv, (*sinktest.Dial)(&s.dial), func(b []byte) bool { return bytes.Contains(b, []byte("xadd")) })
		},
		Arrived: func() []sinktest.Message { return sinktest.Messages(t, entries(t, client(t, srv), stream), message) },
	}
}

// killClients has the server close all connections but this one.
func killClients(t *testing.T, srv *redis.Server) {
	t.Helper()
	c := client(t, srv)
	for left := 2; left > 1; {
		need.OK(t, c.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err())
		list, err := c.ClientList(t.Context()).Result()
		need.OK(t, err)
		left = strings.Count(list, "\n")
	}
}

// message reads an entry as redis.md says.
func message(t *testing.T, m goredis.XMessage) sinktest.Message {
	t.Helper()
	if text, ok := m.Values["event"]; ok {
		var e event.Event
		need.OK(t, e.UnmarshalJSON([]byte(text.(string))))
		return sinktest.MessageOf(t, binding.ToMessage(&e))
	}
	got := sinktest.Message{Attributes: map[string]string{}}
	for name, value := range m.Values {
		if name == "data" {
			got.Payload = value.(string)
		} else {
			got.Attributes[name] = value.(string)
		}
	}
	return got
}

// MAXLEN removes the oldest entries, more or less.
func TestMaxLenRemovesTheOldest(t *testing.T) {
	srv := server(t, redis.Options{Settings: map[string]string{"appendonly": "no"}})
	cfg := settings(srv)
	cfg.MaxLen = 200
	s := open(t, cfg)
	for range 4 {
		for _, err := range s.Deliver(t.Context(), sinktest.NewEvents(500)) {
			need.OK(t, err)
		}
	}
	if n, err := client(t, srv).XLen(t.Context(), "orders").Result(); err != nil || n < 200 || n > 500 {
		t.Errorf("%d of 2000 entries are left, %v, want about 200", n, err)
	}
}

// Without a stream of the configuration, an event goes to that of its topic's name; a route says another.
func TestStreamDefaultsToTheTopic(t *testing.T) {
	srv := server(t, redis.Options{})
	cfg := settings(srv)
	cfg.Stream = ""
	s := open(t, cfg)
	need.OK(t, sinktest.Send(t, s))
	need.Want(t, 1, "%d entries are in the stream of the topic's name, want one", len(entries(t, client(t, srv), "orders")))
	routed, err := New(cfg, func(e *dispatcher.Event) (string, error) { return strings.TrimPrefix(e.PartitionKey, "none"), nil })
	need.OK(t, err)
	t.Cleanup(func() { _ = routed.Close(context.Background()) })
	batch := sinktest.NewEvents(2)
	batch[0].PartitionKey, batch[1].PartitionKey = "elsewhere", "none"
	errs := routed.Deliver(t.Context(), batch)
	need.That(t, errs[0] == nil && len(entries(t, client(t, srv), "elsewhere")) == 1, "a routed event: %v", errs[0])
	sinktest.Want(t, "a route without a name", errs[1], false, "Refusing", "; set stream, or correct the route")
}

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
		need.OK(t, err)
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
			need.OK(t, json.Unmarshal(raw, &[]any{&id, &fields}))
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
// is confirmed: go test -run=- -bench=. -benchtime=100x ./dispatcher/internal/sinks/redissink
func BenchmarkDeliver(b *testing.B) {
	for _, workers := range []int{1, 4} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			sinktest.Bench(b, open(b, settings(server(b, redis.Options{}))), workers)
		})
	}
}

// A batch for many streams goes to all nodes of a cluster, also while slots move between them.
//
// CONTRACT: C-32, C-70
func TestClusterTakesBatchesWhileSlotsMove(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), need.Wait)
	defer cancel()
	nodes, err := redis.StartCluster(ctx, 3, redis.Options{Settings: map[string]string{"cluster-require-full-coverage": "no"}})
	need.Server(t, err, redis.ErrMissing)
	for _, node := range nodes {
		t.Cleanup(func() {
			if err := node.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	reader := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{nodes[0].Address}})
	defer func() { _ = reader.Close() }()

	single := open(t, spec.RedisSink{Addresses: []string{nodes[0].Address}})
	for _, err = range single.Deliver(t.Context(), inStreams(30)) {
		if err != nil {
			break
		}
	}
	sinktest.Want(t, "without cluster", err, false, reason.Refusing, "; the server is a node of a cluster: set topology to Cluster")

	s := open(t, spec.RedisSink{Addresses: []string{nodes[0].Address}, Topology: spec.RedisCluster})
	need.OK(t, s.Probe(t.Context()))
	round := func(what string) {
		t.Helper()
		batch := inStreams(30)
		for i, err := range s.Deliver(t.Context(), batch) {
			if err != nil {
				t.Errorf("%s: stream %s: %v", what, batch[i].PartitionKey, err)
			}
		}
	}
	s.stream.Of = func(e *dispatcher.Event) (string, error) { return e.PartitionKey, nil }
	round("at rest")

	// The slot of one stream moves: first both nodes have it, then it has moved.
	const stream = "stream-7"
	from, err := reader.MasterForKey(t.Context(), stream)
	need.OK(t, err)
	slot := reader.ClusterKeySlot(t.Context(), stream).Val()
	var to *redis.Server
	for _, node := range nodes {
		if node.Address != from.Options().Addr {
			to = node
		}
	}
	target := client(t, to)
	fromID, toID := from.Do(t.Context(), "cluster", "myid").Val().(string), target.Do(t.Context(), "cluster", "myid").Val().(string)
	run := func(c *goredis.Client, args ...any) {
		t.Helper()
		if err := c.Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	before := len(entries(t, from, stream))
	run(from, "del", stream)
	run(target, "cluster", "setslot", slot, "importing", fromID)
	run(from, "cluster", "setslot", slot, "migrating", toID)
	round("while a slot moves")
	run(target, "cluster", "setslot", slot, "node", toID)
	run(from, "cluster", "setslot", slot, "node", toID)
	round("after a slot has moved")
	if got := len(entries(t, target, stream)); before == 0 || got != 2 {
		t.Errorf("%d and %d entries are in the stream before and after it moved, want some and 2", before, got)
	}

	to.Kill()
	unavailable := 0
	batch := inStreams(30)
	for i, err := range s.Deliver(t.Context(), batch) {
		node, _ := reader.MasterForKey(t.Context(), batch[i].PartitionKey)
		switch {
		case err == nil && batch[i].PartitionKey == stream:
			t.Errorf("%s was delivered to a node that is gone", batch[i].PartitionKey)
		case err != nil:
			sinktest.Want(t, fmt.Sprintf("%s at %s", batch[i].PartitionKey, node.Options().Addr), err, true, reason.ConnectionFailed, "; ")
			unavailable++
		}
	}
	need.That(t, unavailable != 0 && unavailable != len(batch), "%d of %d events are unavailable, want those of one node of three", unavailable, len(batch))
	sinktest.Want(t, "Probe", s.Probe(t.Context()), true, reason.ConnectionFailed, "; check that it runs")

	for _, node := range nodes {
		node.Kill()
	}
	for _, s := range []*sink{s, open(t, spec.RedisSink{Addresses: []string{nodes[0].Address}, Topology: spec.RedisCluster})} {
		for _, err := range s.Deliver(t.Context(), inStreams(30)) {
			sinktest.Want(t, "no cluster", err, true, reason.ConnectionFailed, "; check that it runs")
		}
	}
}

// inStreams are new events, each for a stream of its own.
func inStreams(n int) []*dispatcher.Event {
	batch := sinktest.NewEvents(n)
	for i, e := range batch {
		e.PartitionKey = fmt.Sprintf("stream-%d", i)
		e.Topic = e.PartitionKey
	}
	return batch
}
