package redissink

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/redis"
)

// CONTRACT: C-32, C-70, C-71, C-73
func TestRedisSinkMeetsTheSinkContract(t *testing.T) {
	srv := server(t, redis.Options{})
	for _, mode := range []config.ContentMode{config.Binary, config.Structured} {
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
		cfg.TLS = &config.TLS{CAFile: sinktest.File(t, "ca.crt", ca.PEM)}
		sinktest.Exercise(t, func(t *testing.T) sinktest.Destination { return destination(t, srv, cfg) })
	})
}

// destination is a stream of the real server as sinktest.Exercise drives it.
func destination(t *testing.T, srv *redis.Server, cfg config.RedisSink) sinktest.Destination {
	do(t, srv, "set", "taken", "no stream")
	stream := "orders-" + uuid.NewString()
	cfg.Stream = stream
	s := open(t, cfg)
	refused := map[uuid.UUID]bool{}
	s.destination = func(e *dispatcher.Event) (string, error) {
		if refused[e.ID] {
			return "taken", nil
		}
		return stream, nil
	}
	var start func()
	return sinktest.Destination{
		Sink:    s,
		Refuse:  func(id uuid.UUID) { refused[id] = true },
		Refused: dispatcher.Cause{Class: "redis", Code: "WRONGTYPE"},
		Stop:    func() { start = sinktest.Kill(t, srv) },
		Start:   func() { start() },
		Idle:    func() { killClients(t, srv) },
		Missing: func() func() {
			do(t, srv, "set", stream, "no stream")
			return func() { do(t, srv, "del", stream) }
		},
		Hang: func() <-chan struct{} {
			return sinktest.HangServer(t, s, srv, (*sinktest.Dial)(&s.dial), func(b []byte) bool { return bytes.Contains(b, []byte("xadd")) })
		},
		Arrived: func() (got []sinktest.Message) {
			for _, m := range entries(t, client(t, srv), stream) {
				got = append(got, message(t, m))
			}
			return got
		},
	}
}

// killClients has the server close all connections but this one.
func killClients(t *testing.T, srv *redis.Server) {
	t.Helper()
	c := client(t, srv)
	for left := 2; left > 1; {
		if err := c.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
			t.Fatal(err)
		}
		list, err := c.ClientList(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		left = strings.Count(list, "\n")
	}
}

// message reads an entry as redis.md says.
func message(t *testing.T, m goredis.XMessage) sinktest.Message {
	t.Helper()
	if text, ok := m.Values["event"]; ok {
		var e event.Event
		if err := e.UnmarshalJSON([]byte(text.(string))); err != nil {
			t.Fatal(err)
		}
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
func TestMaxLen(t *testing.T) {
	srv := server(t, redis.Options{Settings: map[string]string{"appendonly": "no"}})
	cfg := settings(srv)
	cfg.MaxLen = 200
	s := open(t, cfg)
	for range 4 {
		for _, err := range s.Deliver(t.Context(), sinktest.NewEvents(500)) {
			if err != nil {
				t.Fatal(err)
			}
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
	if err := sinktest.Send(t, s); err != nil {
		t.Fatal(err)
	}
	if n := len(entries(t, client(t, srv), "orders")); n != 1 {
		t.Errorf("%d entries are in the stream of the topic's name, want one", n)
	}
	routed, err := New(cfg, func(e *dispatcher.Event) (string, error) { return strings.TrimPrefix(e.PartitionKey, "none"), nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = routed.Close(context.Background()) })
	batch := sinktest.NewEvents(2)
	batch[0].PartitionKey, batch[1].PartitionKey = "elsewhere", "none"
	errs := routed.Deliver(t.Context(), batch)
	if errs[0] != nil || len(entries(t, client(t, srv), "elsewhere")) != 1 {
		t.Errorf("a routed event: %v", errs[0])
	}
	sinktest.Want(t, "a route without a name", errs[1], false, "Refusing", "; set stream, or correct the route")
}
