package natssink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/base"
)

// session is one connection. It never reconnects: nothing is kept to be sent later, and what was sent
// and not confirmed is known. The next delivery opens another.
type session struct {
	// ready is closed when the session is connected, or failed to, which err says then.
	ready chan struct{}
	err   error
	conn  *nats.Conn
	inbox string // prefix of the subjects that responses come on

	// gone is closed when nothing more is sent, nor confirmed.
	gone chan struct{}

	mu      sync.Mutex
	leaving bool // it ends when no delivery waits any more
	retired bool
	cancel  context.CancelFunc // of what connects
	raw     net.Conn
	refused error // the last failure to dial
	trouble error // the last that nats.go said of the connection
	next    uint64
	waiting map[uint64]place
}

// place is where a response goes.
type place struct {
	*delivery
	i int
}

// delivery are the messages of a Deliver and their responses.
type delivery struct {
	*base.Results
	msgs []*nats.Msg
}

// open returns a session that is connecting. The caller holds s.mu.
func (s *sink) open() *session {
	ctx, cancel := context.WithTimeout(context.Background(), min(s.timeout, connectTimeout))
	ses := &session{ready: make(chan struct{}), gone: make(chan struct{}), cancel: cancel, waiting: map[uint64]place{}}
	s.running.Go(func() {
		defer cancel()
		stop := context.AfterFunc(ctx, ses.retire)
		ses.err = ses.connect(ctx, s)
		if !stop() && ses.err != nil {
			ses.err = ctx.Err()
		}
		if ses.err != nil {
			ses.retire()
		}
		close(ses.ready)
		<-ses.gone
		if ses.conn != nil {
			ses.conn.Close()
		}
	})
	return ses
}

// connect makes the connection, with TLS and login, and waits until responses will come.
func (ses *session) connect(ctx context.Context, s *sink) error {
	o, err := s.options()
	if err != nil {
		return err
	}
	o.CustomDialer = dialFunc(func(network, address string) (net.Conn, error) {
		raw, err := s.dial(ctx, network, address)
		return ses.opened(raw, err)
	})
	o.AsyncErrorCB = func(_ *nats.Conn, _ *nats.Subscription, err error) { ses.heard(err) }
	o.ClosedCB = func(*nats.Conn) { ses.retire() }
	o.LameDuckModeHandler = func(*nats.Conn) { s.leave(ses) } // the server is about to stop
	conn, err := o.Connect()
	if err != nil {
		return ses.cause(err)
	}
	ses.conn, ses.inbox = conn, conn.NewInbox()+"."
	if _, err := conn.Subscribe(ses.inbox+"*", ses.receive); err != nil {
		return ses.cause(err)
	}
	if err := conn.FlushWithContext(ctx); err != nil {
		return ses.cause(err)
	}
	// A refusal to subscribe comes before the response to the flush.
	if err := conn.LastError(); errors.Is(err, nats.ErrPermissionViolation) {
		return errNoInbox
	}
	return nil
}

type dialFunc func(network, address string) (net.Conn, error)

func (f dialFunc) Dial(network, address string) (net.Conn, error) { return f(network, address) }

// opened remembers the connection, so that it can be ended while nats.go waits for it.
func (ses *session) opened(raw net.Conn, err error) (net.Conn, error) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if err != nil {
		ses.refused = err
		return nil, err
	}
	if ses.retired {
		_ = raw.Close()
		return nil, net.ErrClosed
	}
	ses.raw = raw
	return &conn{raw, ses}, nil
}

// conn is a connection to a server.
type conn struct {
	net.Conn
	session *session
}

// Write does not fail while the session connects: the read that follows then has the server's own word
// for what it refuses, such as an alert about the client's certificate.
func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	select {
	case <-c.session.ready:
		return n, err
	default:
		return len(b), nil
	}
}

// cause is what nats.go only says that there is.
func (ses *session) cause(err error) error {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if errors.Is(err, nats.ErrNoServers) && ses.refused != nil {
		return ses.refused
	}
	return err
}

// wait returns when the session is connected, or with the reason why it is not.
func (ses *session) wait(ctx context.Context) error {
	select {
	case <-ses.ready:
		return ses.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (ses *session) over() bool {
	select {
	case <-ses.gone:
		return true
	default:
		return false
	}
}

// leave ends the session as soon as no delivery waits in it.
func (ses *session) leave() {
	ses.mu.Lock()
	ses.leaving = true
	idle := len(ses.waiting) == 0
	ses.mu.Unlock()
	if idle {
		ses.retire()
	}
}

// retire ends the session. What nats.go still holds is not sent: its socket is closed first. All
// deliveries of the session end.
func (ses *session) retire() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.retired {
		return
	}
	ses.retired = true
	ses.cancel()
	if ses.raw != nil {
		_ = ses.raw.Close()
	}
	close(ses.gone)
}

// publish sends the messages and waits for their responses until ctx ends.
func (ses *session) publish(ctx context.Context, msgs []*nats.Msg) []error {
	d := &delivery{base.NewResults(len(msgs)), msgs}
	first, err := ses.expect(d)
	if err != nil {
		return slices.Repeat([]error{err}, len(msgs))
	}
	defer ses.forget(first, len(msgs))
	// A server that reads nothing holds nats.go up, with its lock, until the socket is closed.
	stop := context.AfterFunc(ctx, ses.retire)
	defer stop()
	for i, m := range msgs {
		id := first + uint64(i)
		m.Reply = ses.inbox + strconv.FormatUint(id, 36)
		if ses.over() {
			ses.resolve(id, errUnsent)
			continue
		}
		switch err := ses.conn.PublishMsg(m); {
		case err == nil:
		case errors.Is(err, nats.ErrConnectionClosed):
			ses.resolve(id, errUnsent)
		case errors.Is(err, nats.ErrMaxPayload):
			ses.resolve(id, fmt.Errorf("%w: %d bytes with its headers, and the server takes %d; raise its max_payload and the stream's max_msg_size, or make smaller events", errTooLarge, size(m), ses.conn.MaxPayload()))
		default: // who knows what was written
			ses.heard(err)
			ses.retire()
		}
	}
	select {
	case <-d.Done:
	case <-ses.gone:
	case <-ctx.Done():
		ses.retire()
	}
	return d.Now(base.ErrPending)
}

// expect makes places for a delivery's responses, and returns the first one's number.
func (ses *session) expect(d *delivery) (first uint64, err error) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.retired {
		return 0, errUnsent
	}
	first = ses.next
	for i := range d.msgs {
		ses.waiting[ses.next] = place{d, i}
		ses.next++
	}
	return first, nil
}

func (ses *session) forget(first uint64, n int) {
	ses.mu.Lock()
	for i := range n {
		delete(ses.waiting, first+uint64(i))
	}
	leaving := ses.leaving
	ses.mu.Unlock()
	if leaving {
		ses.leave()
	}
}

func (ses *session) resolve(id uint64, err error) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.put(id, err)
}

// put gives a response to who waits for it. The caller holds ses.mu.
func (ses *session) put(id uint64, err error) {
	if p, ok := ses.waiting[id]; ok {
		delete(ses.waiting, id)
		p.Set(p.i, err)
	}
}

// receive takes a stream's response to one message.
func (ses *session) receive(m *nats.Msg) {
	id, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, ses.inbox), 36, 64)
	if err == nil {
		ses.resolve(id, meaning(m))
	}
}

// noResponders is the status of the server's own response to a message that no stream takes.
const noResponders = "503"

// meaning reads a PubAck. That the stream has the message already, by its id, is as good as stored.
func meaning(m *nats.Msg) error {
	if len(m.Data) == 0 && m.Header.Get("Status") == noResponders {
		return errNoStream
	}
	var ack struct {
		Stream string       `json:"stream"`
		Error  *streamError `json:"error"`
	}
	switch err := json.Unmarshal(m.Data, &ack); {
	case err == nil && ack.Error != nil:
		return ack.Error
	case err != nil || ack.Stream == "":
		return errNoAck
	default:
		return nil
	}
}

// heard is what nats.go says of the connection. A message that the user may not publish has no other
// response than this: the server names its subject.
func (ses *session) heard(err error) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if !errors.Is(err, nats.ErrPermissionViolation) {
		ses.trouble = err
		return
	}
	for id, p := range ses.waiting {
		if isDenied(err, p.msgs[p.i].Subject) {
			ses.put(id, errDenied)
		}
	}
}

// isDenied reports whether err says that the user may not publish to the subject.
func isDenied(err error, subject string) bool {
	return errors.Is(err, nats.ErrPermissionViolation) && strings.HasSuffix(err.Error(), fmt.Sprintf("Publish to %q", subject))
}

// troubled is the last that was heard, or nil.
func (ses *session) troubled() error {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.trouble
}

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

func dial(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext(ctx, network, address)
}
