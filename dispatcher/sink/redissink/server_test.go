package redissink

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/reason"
	"github.com/outbox-operator/outbox-operator/hack/pgtest"
	"github.com/outbox-operator/outbox-operator/hack/redis"
)

// Planted where they must never come out again (CONTRACT C-73). verify looks for them.
const (
	payloadSecret  = "payload-4111"
	passwordSecret = "password-4222"
	wrongSecret    = "wrong-4333"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// server starts a server for this test alone. Without Redis, the test is skipped.
func server(t testing.TB, opts redis.Options) *redis.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	s, err := redis.Start(ctx, opts)
	if errors.Is(err, redis.ErrMissing) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func restart(t testing.TB, s *redis.Server) {
	t.Helper()
	if err := s.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// client is another client, of the user default.
func client(t testing.TB, s *redis.Server) *goredis.Client {
	t.Helper()
	c := goredis.NewClient(&goredis.Options{Addr: s.Address})
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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func newEvent() *dispatcher.Event {
	return &dispatcher.Event{
		ID: uuid.Must(uuid.NewV7()), Seq: 1, Namespace: "shop", Topic: "orders", Attempt: 1, Headers: map[string]string{},
		Payload: []byte(`{"secret":"` + payloadSecret + `"}`), CreatedAt: time.Unix(1_770_000_000, 0),
	}
}

func newEvents(n int) []*dispatcher.Event {
	batch := make([]*dispatcher.Event, n)
	for i := range batch {
		batch[i] = newEvent()
	}
	return batch
}

// send delivers one new event.
func send(t testing.TB, s *sink) error {
	t.Helper()
	return verify(t, s.Deliver(t.Context(), newEvents(1))[0])
}

// verify checks what holds for every error of this package: a remedy, and no secret.
func verify(t testing.TB, err error) error {
	t.Helper()
	if err == nil {
		return nil
	}
	text := err.Error()
	for _, secret := range []string{payloadSecret, passwordSecret, wrongSecret} {
		if strings.Contains(text, secret) {
			t.Errorf("the error holds %q: %s", secret, text)
		}
	}
	if strings.Contains(text, "\n") || !strings.Contains(text, "; ") && !strings.Contains(text, "interrupted") {
		t.Errorf("the error must be one line with a remedy behind a semicolon: %s", text)
	}
	return err
}

// want checks an error's class, its word, and a part of its text.
func want(t testing.TB, what string, err error, unavailable bool, word, text string) {
	t.Helper()
	switch {
	case verify(t, err) == nil:
		t.Errorf("%s: no error", what)
	case dispatcher.IsUnavailable(err) != unavailable:
		t.Errorf("%s: unavailable is %v: %v", what, !unavailable, err)
	case reason.Of(err) != word:
		t.Errorf("%s: the reason is %s, want %s: %v", what, reason.Of(err), word, err)
	case !strings.Contains(err.Error(), text):
		t.Errorf("%s: the error does not say %q: %v", what, text, err)
	}
}

func file(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	write(t, path, content)
	return path
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// watch calls written for each write of events that the sink does, just after it left.
func (s *sink) watch(written func()) {
	dial := s.dial
	s.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		return &watchedConn{c, written}, err
	}
}

type watchedConn struct {
	net.Conn
	written func()
}

func (c *watchedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if strings.Contains(string(b), "xadd") {
		c.written()
	}
	return n, err
}
