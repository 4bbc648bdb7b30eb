package sinktest

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// Server is a destination's server as a process of this test.
type Server interface {
	// Kill ends it with kill -9.
	Kill()
	// Restart starts it on what it had written, at the same address. It returns an error unless it takes requests again.
	Restart(context.Context) error
	// Pause stops it: it keeps its connections, and does nothing until Resume.
	Pause()
	Resume()
}

// Kill kills a server. restart starts it again; the end of the test does, if nothing else did.
func Kill(t testing.TB, s Server) (restart func()) {
	t.Helper()
	s.Kill()
	restarted := false
	restart = func() {
		if restarted {
			return
		}
		restarted = true
		if err := s.Restart(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(restart)
	return restart
}

// Faults are the faults of a server that every sink must survive. One without a server of its own in the
// test has those of [Exercise] alone.
type Faults struct {
	Server Server
	// Open opens a destination at the server, whose sink waits for timeout. Its Hang pauses the server.
	Open func(t *testing.T, timeout time.Duration) Destination
	// Unconfirmed and Unconnected are parts of the errors while the server is paused: with a connection, and
	// without one. %s is the timeout.
	Unconfirmed, Unconnected string
	// Transaction says that a batch is one transaction, which a server that resumes finishes whole or not at all.
	Transaction bool
}

// moreThanBuffers is several times what the buffers of a connection take. In 500 events, none is larger than RabbitMQ's
// max_message_size in its tests.
const moreThanBuffers = 45_000_000

// Run runs the faults, each as a subtest.
func (f Faults) Run(t *testing.T) {
	t.Run("Paused", f.paused)
	for name, bytes := range map[string]int{"a small batch": 1000, "a batch larger than the socket's buffers": moreThanBuffers} {
		t.Run("Killed, "+name, func(t *testing.T) { f.interrupted(t, bytes, func() { Kill(t, f.Server)() }, 0) })
	}
	if !f.Transaction {
		t.Run("Resumed", func(t *testing.T) { f.interrupted(t, moreThanBuffers, f.Server.Resume, 0.5) })
	}
}

// A sink without a connection sent nothing to a paused server; one with a connection may have (CONTRACT C-32).
func (f Faults) paused(t *testing.T) {
	const timeout = 2 * time.Second
	connected, fresh := f.Open(t, timeout).Sink, f.Open(t, timeout).Sink
	unconfirmed, unconnected := strings.ReplaceAll(f.Unconfirmed, "%s", "2s"), strings.ReplaceAll(f.Unconnected, "%s", "2s")
	if err := Send(t, connected); err != nil {
		t.Fatal(err)
	}
	f.Server.Pause()
	t.Cleanup(f.Server.Resume)
	err := Send(t, connected)
	Want(t, "with a connection", err, false, reason.ConnectionFailed, unconfirmed)
	if !reason.IsTimeout(err) { // metrics count them
		t.Errorf("with a connection: %v; want a timeout", err)
	}
	Want(t, "a new connection", Send(t, fresh), true, reason.ConnectionFailed, unconnected)
	if err := Send(t, connected); !reason.IsTimeout(err) || !dispatcher.IsUnavailable(err) {
		t.Errorf("after that: %v; want a timeout that is Unavailable", err)
	}
	Want(t, "Probe", fresh.Probe(t.Context()), true, reason.ConnectionFailed, unconnected)
	f.Server.Resume()
	for _, s := range []dispatcher.Sink{connected, fresh} {
		eventually(t, "the server responds after Resume", func() error {
			err := Send(t, s)
			if err != nil && !dispatcher.IsUnavailable(err) && !dispatcher.IsDestinationFault(err) && !reason.IsTimeout(err) {
				t.Fatalf("after Resume: %v; want what is the server's fault, and no event's", err)
			}
			return err
		})
	}
}

// Events whose delivery was interrupted are never sent later: another worker may send them by then
// (CONTRACT C-27, C-31). recovery is what happens to the paused server: when it is killed, it reads nothing of what
// was sent to it; when it resumes, it reads what the connection's buffers had, which is less than the part most.
func (f Faults) interrupted(t *testing.T, bytes int, recovery func(), most float64) {
	d := f.Open(t, time.Minute)
	batch := NewEvents(d.Sink.BatchSize())
	for _, e := range batch {
		e.Payload = []byte(`"` + strings.Repeat("7", bytes/len(batch)) + `"`)
	}
	waiting := d.Hang()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan []error, 1)
	go func() { result <- d.Sink.Deliver(ctx, batch) }()
	within(t, waiting, "the sink wrote nothing")
	cancel()
	for _, err := range within(t, result, "Deliver did not return after its context was cancelled") {
		if Verify(t, err) == nil || !errors.Is(err, context.Canceled) || dispatcher.IsUnavailable(err) {
			t.Fatalf("a delivery that was interrupted: %v; want context.Canceled, and not Unavailable", err)
		}
	}
	recovery()
	for range 3 {
		if err := sendSoon(t, d.Sink); err != nil {
			t.Fatalf("after the restart: %v", err)
		}
	}
	interrupted, others, late := map[string]bool{}, map[string]bool{}, 0
	for _, e := range batch {
		interrupted[e.ID.String()] = true
	}
	for _, m := range d.Arrived() {
		switch id := m.Attributes["id"]; {
		case interrupted[id]:
			late++
		case others[id]:
			t.Errorf("event %s arrived twice", id)
		default:
			others[id] = true
		}
	}
	if limit := int(most * float64(len(batch))); late > limit {
		t.Errorf("%d of %d interrupted events arrived, want at most %d: they were sent after the interruption", late, len(batch), limit)
	}
	if len(others) < 3 {
		t.Errorf("%d confirmed events arrived, want 3 or more", len(others))
	}
}

// sendSoon is Send to a server that was restarted or resumed. It may say for a while that it is not ready, as
// Kafka does of partitions whose broker was killed: that costs no event an attempt.
func sendSoon(t testing.TB, s dispatcher.Sink) (err error) {
	for deadline := time.Now().Add(time.Minute); ; {
		err = Send(t, s)
		if !dispatcher.IsUnavailable(err) || reason.IsTimeout(err) || time.Now().After(deadline) {
			return err
		}
	}
}

// HangServer is Destination.Hang for a server: it connects the sink, by one event, and pauses the server.
// written gets a value for each write of events. dial is the sink's own, before its first connection.
func HangServer(t *testing.T, s dispatcher.Sink, server Server, dial *Dial, isEvent func(written []byte) bool) <-chan struct{} {
	t.Helper()
	written := Watch(dial, isEvent)
	if err := Send(t, s); err != nil {
		t.Fatal(err)
	}
	<-written
	server.Pause()
	t.Cleanup(server.Resume)
	return written
}

// Watch changes dial, and returns a channel that gets a value after each write for which isEvent is true. A
// value that nothing reads is dropped.
func Watch(dial *Dial, isEvent func(written []byte) bool) <-chan struct{} {
	written, inner := make(chan struct{}, 1), *dial
	*dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := inner(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &watchedConn{c, isEvent, written}, nil
	}
	return written
}

type watchedConn struct {
	net.Conn
	isEvent func([]byte) bool
	written chan<- struct{}
}

func (c *watchedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if c.isEvent(b) {
		select {
		case c.written <- struct{}{}:
		default:
		}
	}
	return n, err
}

// Rotated checks that a sink reads its files for each connection. openLogin opens one that reads its password
// from the file, and openTLS one that presents a client certificate to a server whose authority is certs.CA.
func Rotated(t *testing.T, certs *Certificates, openLogin func(t *testing.T, passwordFile string) dispatcher.Sink, openTLS func(*testing.T, *spec.TLS) dispatcher.Sink) {
	if openLogin != nil {
		password := File(t, "password", WrongSecret+"\n")
		s := openLogin(t, password)
		Want(t, "a wrong password", Send(t, s), true, reason.AuthenticationFailed, "")
		Write(t, password, PasswordSecret)
		if err := Send(t, s); err != nil {
			t.Errorf("the right password: %v", err)
		}
		Write(t, password, "\n")
		Want(t, "an empty file", s.Probe(t.Context()), true, reason.AuthenticationFailed, "is empty; write the value into it")
		if err := Send(t, s); err != nil {
			t.Errorf("the open connection: %v", err)
		}
	}
	cfg := certs.Present(t, certs.Client)
	Write(t, cfg.CAFile, certs.Other.PEM)
	Write(t, cfg.ClientKeyFile, "")
	s := openTLS(t, cfg)
	Want(t, "no key", Send(t, s), true, reason.CertificateInvalid, "tls.key is empty; write the value into it")
	Write(t, cfg.ClientKeyFile, certs.Client.KeyPEM)
	Want(t, "another authority", Send(t, s), true, reason.CertificateInvalid, "tls.caSecretRef or caConfigMapRef")
	Write(t, cfg.CAFile, certs.CA.PEM)
	if err := Send(t, s); err != nil {
		t.Errorf("the right authority: %v", err)
	}
}

// Dial connects, as a sink does.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// Relayed returns a Dial whose connections go through this process, and what closes those that are open:
// the sink sees what it sees when the server closes them.
func Relayed(t *testing.T, dial Dial) (through Dial, closeAll func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	var mu sync.Mutex // also: one connection at a time is made
	var open []net.Conn
	through = func(ctx context.Context, network, address string) (net.Conn, error) {
		server, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		client, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			return nil, err
		}
		here, err := listener.Accept()
		if err != nil {
			return nil, err
		}
		open = append(open, here)
		go pass(server, here)
		go pass(here, server)
		return client, nil
	}
	return through, func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range open {
			_ = c.Close()
		}
		open = nil
	}
}

// pass hands on what comes until one of the two has ended.
func pass(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_, _ = to.Close(), from.Close()
}
