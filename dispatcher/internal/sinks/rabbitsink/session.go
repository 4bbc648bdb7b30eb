package rabbitsink

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/files"
)

// session is one connection. amqp091-go makes none again that broke: the next delivery does.
type session struct {
	*amqp.Connection
	wire *wire
	// proven is set when the broker has confirmed a message. Before that one message goes alone: the
	// broker says only to a connection which publishes that it takes nothing.
	proven atomic.Bool
	// reason is why the broker takes no messages now; nil: it does.
	reason atomic.Pointer[string]
	ended  atomic.Bool
	// retired: no new delivery uses it. The connection ends when those that use it have their responses.
	retired atomic.Bool
	using   atomic.Int64
}

// done is the end of a delivery's use.
func (ses *session) done() {
	if ses.using.Add(-1) == 0 && ses.retired.Load() {
		go ses.close(closeTimeout)
	}
}

// session returns the current session, or makes one. Deliveries that come meanwhile wait for the same.
func (s *sink) session(ctx context.Context) (*session, error) {
	if ses := s.live(); ses != nil {
		return ses, nil
	}
	made := s.connecting.DoChan("", func() (any, error) {
		if ses := s.live(); ses != nil {
			return ses, nil
		}
		ses, err := s.connect(s.open)
		if err == nil {
			s.mu.Lock()
			s.current = ses
			s.mu.Unlock()
		}
		return ses, err
	})
	select {
	case result := <-made:
		return result.Val.(*session), result.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// live is the current session, or nil when it has ended.
func (s *sink) live() *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil || s.current.retired.Load() || s.current.ended.Load() || s.current.IsClosed() {
		return nil
	}
	return s.current
}

// connect makes a session with the first node that lets it in. A login that one node refuses is not
// tried at the others, unless that node is full.
func (s *sink) connect(ctx context.Context) (ses *session, err error) {
	for _, address := range s.cfg.Addresses {
		ses, err = s.connectTo(ctx, address)
		if err == nil || ctx.Err() != nil || isLogin(err) {
			break
		}
	}
	return ses, err
}

func (s *sink) connectTo(ctx context.Context, address string) (*session, error) {
	limited, cancel := context.WithTimeout(ctx, min(s.timeout, connectTimeout))
	defer cancel()
	login, err := newLogin(s.cfg.Auth)
	if err != nil {
		return nil, err
	}
	w, err := dial(limited, s.cfg.TLS, address)
	if err != nil {
		return nil, err
	}
	abort := context.AfterFunc(limited, w.abort)
	conn, err := amqp.Open(w, amqp.Config{
		SASL: []amqp.Authentication{login}, Vhost: s.cfg.VHost, Heartbeat: s.cfg.Heartbeat.D(), Locale: "en_US",
		FrameSize:  128 << 10, // RabbitMQ's own default
		Properties: amqp.Table{"product": "outbox-dispatcher", "connection_name": s.cfg.ConnectionName},
	})
	if !abort() && err == nil {
		err = limited.Err()
	}
	if err != nil {
		defer w.abort()
		return nil, w.explain(limited, err)
	}
	ses := &session{Connection: conn, wire: w}
	go func() {
		for b := range conn.NotifyBlocked(make(chan amqp.Blocking, 1)) {
			if b.Active {
				ses.reason.Store(&b.Reason)
			} else {
				ses.reason.Store(nil)
			}
		}
	}()
	return ses, nil
}

// blocked is the error while the broker takes no messages.
func (s *sink) blocked() error {
	if ses := s.live(); ses != nil {
		if why := ses.reason.Load(); why != nil {
			return s.isBlocked(*why)
		}
	}
	return nil
}

// abort ends the session at once. What the kernel has not sent yet is dropped.
func (ses *session) abort() {
	ses.ended.Store(true)
	ses.wire.abort()
}

// close says farewell to the broker, and does not wait long for its response.
func (ses *session) close(timeout time.Duration) {
	ses.ended.Store(true)
	_ = ses.CloseDeadline(time.Now().Add(timeout)) // it is gone in any case
	ses.wire.abort()
}

// wire is a connection's socket.
type wire struct {
	net.Conn // with or without TLS
	raw      net.Conn
	reads    atomic.Int64 // how often something came from the broker
	failure  error        // of Read, once broken is closed
	broken   chan struct{}
}

func newWire(conn, raw net.Conn) *wire {
	return &wire{Conn: conn, raw: raw, broken: make(chan struct{})}
}

// Read keeps the failure: amqp091-go hands on its text only. It has one reader.
func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n > 0 {
		w.reads.Add(1)
	}
	if err != nil {
		select {
		case <-w.broken:
		default:
			w.failure = err
			close(w.broken)
		}
	}
	return n, err
}

// Write may fail before the broker's last words are read, and the library closes the socket then. So a
// failure waits for them.
func (w *wire) Write(b []byte) (int, error) {
	n, err := w.Conn.Write(b)
	if err != nil {
		select {
		case <-w.broken:
		case <-time.After(closeTimeout): // the reader is who writes
		}
	}
	return n, err
}

// abort works also while a Write waits, and does not wait for TLS.
func (w *wire) abort() {
	if tcp, ok := w.raw.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // closed by now, if that fails
	}
	_ = w.raw.Close()
}

// explain returns the reason why there is no session.
func (w *wire) explain(ctx context.Context, err error) error {
	select {
	case <-w.broken:
	default:
		return cmp.Or(ctx.Err(), err)
	}
	var remote *net.OpError
	switch {
	case isResponse(err):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(w.failure, &remote) && remote.Op == "remote error": // of TLS
		return w.failure
	case errors.Is(err, amqp.ErrCredentials), errors.Is(err, amqp.ErrVhost):
		return err // RabbitMQ's way to say so is to close the connection
	default:
		return w.failure
	}
}

// isResponse reports whether err is what the broker said.
func isResponse(err error) bool {
	var e *amqp.Error
	return errors.Is(err, amqp.ErrSASL) || errors.As(err, &e) && e.Server
}

// dial connects, with TLS unless cfg is nil. Its files are read each time.
func dial(ctx context.Context, cfg *spec.TLS, address string) (*wire, error) {
	conn, raw, err := files.Dial(ctx, cfg, address)
	if err != nil {
		return nil, err
	}
	return newWire(conn, raw), nil
}

// newLogin reads the credentials.
func newLogin(cfg *spec.Auth) (amqp.Authentication, error) {
	if cfg.Type == spec.AuthExternal {
		return &amqp.ExternalAuth{}, nil
	}
	user, password, err := files.Login("auth", cfg)
	if err != nil {
		return nil, err
	}
	return &amqp.PlainAuth{Username: user, Password: password}, nil
}
