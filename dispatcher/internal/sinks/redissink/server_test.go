package redissink

import (
	"context"
	"crypto/tls"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"

	goredis "github.com/redis/go-redis/v9"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/hack/servers/redis"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// server starts a server for this test alone. Without Redis, the test is skipped.
func server(t testing.TB, opts redis.Options) *redis.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	s, err := redis.Start(ctx, opts)
	need.Server(t, err, redis.ErrMissing)
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// client is another client, of the user default.
func client(t testing.TB, s *redis.Server) *goredis.Client {
	t.Helper()
	opt := &goredis.Options{Addr: s.Address, PoolSize: 1}
	if s.TLS() {
		opt.TLSConfig = &tls.Config{InsecureSkipVerify: true} // it is this test's own
	}
	c := goredis.NewClient(opt)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// do has the server do something.
func do(t testing.TB, s *redis.Server, args ...any) {
	t.Helper()
	if err := client(t, s).Do(t.Context(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

// entries are all of a stream.
func entries(t testing.TB, c goredis.Cmdable, stream string) []goredis.XMessage {
	t.Helper()
	all, err := c.XRange(t.Context(), stream, "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func settings(s *redis.Server) config.RedisSink {
	return config.RedisSink{Addresses: []string{s.Address}, Stream: "orders"}
}

func open(t testing.TB, cfg config.RedisSink) *sink {
	t.Helper()
	s, err := build(cfg, nil)
	return sinktest.Opened(t, s, err)
}
