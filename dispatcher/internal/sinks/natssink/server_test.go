package natssink

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"

	"github.com/google/uuid"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/hack/servers/nats"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// theServer is the one server without security of this process. The first test that needs it starts it.
// Tests that share it do not run in parallel: some stop it.
var theServer struct {
	once sync.Once
	*nats.Server
	err error
}

func TestMain(m *testing.M) { pgtest.Main(stopping{m}) }

func server(t testing.TB) *nats.Server {
	t.Helper()
	theServer.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		theServer.Server, theServer.err = nats.Start(ctx, nats.Options{})
	})
	if theServer.err != nil {
		t.Fatal(theServer.err)
	}
	return theServer.Server
}

// start makes a server for one test.
func start(t testing.TB, opts nats.Options) *nats.Server {
	t.Helper()
	s, err := nats.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// admin is another client than the sink's.
func admin(t testing.TB, s *nats.Server, opts ...client.Option) jetstream.JetStream {
	t.Helper()
	conn, err := client.Connect(s.URL(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// newStream makes a stream in files, which captures the subjects that start with its name.
func newStream(t testing.TB, s *nats.Server, change func(*jetstream.StreamConfig), opts ...client.Option) string {
	t.Helper()
	name := "stream-" + uuid.NewString()
	cfg := jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}, Storage: jetstream.FileStorage}
	if change != nil {
		change(&cfg)
	}
	if _, err := admin(t, s, opts...).CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	return name
}

// consume reads all that is in a stream, in its order.
func consume(t testing.TB, s *nats.Server, stream string, opts ...client.Option) (msgs []jetstream.Msg) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	js := admin(t, s, opts...)
	var left uint64
	var reader jetstream.Consumer
	find := func() error { // a cluster that has no leader yet does not respond
		once, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		of, err := js.Stream(once, stream)
		if err != nil {
			return err
		}
		left = of.CachedInfo().State.Msgs
		reader, err = of.OrderedConsumer(once, jetstream.OrderedConsumerConfig{})
		return err
	}
	for {
		err := find()
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	if left == 0 {
		return nil
	}
	all, err := reader.Messages()
	if err != nil {
		t.Fatal(err)
	}
	defer all.Stop()
	for uint64(len(msgs)) < left {
		m, err := all.Next(jetstream.NextContext(ctx))
		if err != nil {
			t.Fatalf("%d of %d messages were read: %v", len(msgs), left, err)
		}
		msgs = append(msgs, m)
	}
	return msgs
}

// plainConfig is the configuration for a stream of a server without security.
func plainConfig(s *nats.Server, stream string) config.NATSSink {
	return config.NATSSink{Servers: []string{s.URL()}, Subject: stream + ".events"}
}

func open(t testing.TB, cfg config.NATSSink) *sink {
	t.Helper()
	s, err := build(cfg, nil)
	return sinktest.Opened(t, s, err)
}

// isPublish reports whether a write of the client's has a message in it.
func isPublish(written []byte) bool { return bytes.Contains(written, []byte("HPUB ")) }

// gate is in the way of a sink's writes when it is shut.
type gate struct {
	mu      sync.Mutex
	shutAt  chan struct{} // nil: open
	waiting chan struct{}
	conns   []net.Conn
}

func (s *sink) gate() *gate {
	g := &gate{}
	dial := s.dial
	s.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.conns = append(g.conns, c)
		return &gatedConn{c, g, make(chan struct{}), sync.Once{}}, nil
	}
	return g
}

// shut keeps writes waiting until their connection is closed. It returns a channel that gets a value
// for each.
func (g *gate) shut() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shutAt, g.waiting = make(chan struct{}), make(chan struct{}, 100)
	return g.waiting
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = nil
}

// cut breaks the connections, and the writes that wait.
func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.shutAt)
	for _, c := range g.conns {
		_ = c.Close()
	}
}

type gatedConn struct {
	net.Conn
	gate   *gate
	closed chan struct{}
	once   sync.Once
}

func (c *gatedConn) Write(b []byte) (int, error) {
	c.gate.mu.Lock()
	waiting, broken := c.gate.waiting, c.gate.shutAt
	c.gate.mu.Unlock()
	if waiting == nil {
		return c.Conn.Write(b)
	}
	waiting <- struct{}{}
	select {
	case <-c.closed:
	case <-broken:
	}
	return 0, net.ErrClosed
}

func (c *gatedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// stopping stops the server after the tests.
type stopping struct{ m *testing.M }

func (s stopping) Run() int {
	code := s.m.Run()
	if theServer.Server != nil {
		if err := theServer.Stop(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	return code
}

// hello is the address of something that says a word and hangs up.
func hello(t testing.TB, word string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if word != "" {
				_, _ = c.Write([]byte(word + "\r\n"))
			}
			_ = c.Close()
		}
	}()
	return l.Addr().String()
}
