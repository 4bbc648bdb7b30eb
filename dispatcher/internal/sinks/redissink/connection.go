package redissink

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/files"
)

// connection is one connection to one server, for one delivery at a time. go-redis speaks on it; the connection
// sees what leaves, and can end it at once.
type connection struct {
	address string
	client  *redis.Client // of one connection
	// ready is true once the connection is logged in: what leaves then is a delivery's.
	ready atomic.Bool
	// sent is true when something of this delivery left, or may have.
	sent atomic.Bool

	used time.Time // when it was given back

	mu   sync.Mutex
	cut  bool
	conn net.Conn
}

// take returns an idle connection, or makes one. Nothing is dialled yet. Connections that were idle for long are given
// up: who keeps no state for a silent connection, such as a load balancer, may drop it without a word.
func (s *sink) take(address string) *connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	idle := s.idle[address]
	for len(idle) > 0 && time.Since(idle[0].used) > idleTimeout {
		go idle[0].close()
		idle = idle[1:]
	}
	s.idle[address] = idle
	if len(idle) == 0 {
		return s.newConnection(address)
	}
	l := idle[len(idle)-1]
	s.idle[address] = idle[:len(idle)-1]
	l.sent.Store(false)
	return l
}

// give takes back a connection whose commands all have replies. Those of other addresses that were idle for long are given up:
// no delivery takes one to a node that is gone.
func (s *sink) give(l *connection) {
	l.used = time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle[l.address] = append(s.idle[l.address], l)
	for address, idle := range s.idle {
		if len(idle) > 0 && time.Since(idle[len(idle)-1].used) <= idleTimeout {
			continue
		}
		for _, old := range idle {
			go old.close()
		}
		delete(s.idle, address)
	}
}

func (s *sink) newConnection(address string) *connection {
	l := &connection{address: address}
	opt := &redis.Options{
		Addr: address, DB: int(s.cfg.Database),
		CredentialsProviderContext: s.credentials,
		// One connection, for pipelines too.
		PoolSize: 1, PipelinePoolSize: -1,
		// Nothing is sent or dialled a second time behind our back (CONTRACT C-27).
		MaxRetries: -1, DialerRetries: 1, DialTimeout: connectTimeout,
		// The connection ends a connection that takes too long.
		ReadTimeout: -2, WriteTimeout: -2,
		Protocol: 2, DisableIdentity: true,
	}
	opt.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		l.ready.Store(false)
		raw, err := s.dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return l.open(raw)
	}
	opt.OnConnect = func(ctx context.Context, c *redis.Conn) error {
		if err := c.Ping(ctx).Err(); redis.IsAuthError(err) { // go-redis logs in if it has a password
			return err
		}
		l.ready.Store(true)
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.conn.SetDeadline(time.Time{})
	}
	l.client = redis.NewClient(opt)
	return l
}

// open makes a new connection the connection's. It has to be ready soon.
func (l *connection) open(raw net.Conn) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		_ = raw.Close()
		return nil, net.ErrClosed
	}
	l.conn = raw
	if err := raw.SetDeadline(time.Now().Add(connectTimeout)); err != nil {
		return nil, err
	}
	c, below := &conn{raw, l}, raw
	if secure, ok := raw.(*tls.Conn); ok {
		below = secure.NetConn()
	}
	// go-redis looks into the socket of an idle connection before it uses that. What is there to be read is
	// its end: with TLS the alert that says so. Nothing else was requested.
	if socket, ok := below.(syscall.Conn); ok {
		return struct {
			*conn
			syscall.Conn
		}{c, socket}, nil
	}
	return c, nil
}

// end closes the connection: what waits on it returns, and nothing is sent any more.
func (l *connection) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	if l.conn != nil {
		_ = l.conn.Close()
	}
}

func (l *connection) close() {
	l.end()
	_ = l.client.Close() // of a connection that is closed
}

// do runs one pipeline, until ctx ends. Its commands have the replies. It reports whether the connection can be
// used again.
func (l *connection) do(ctx context.Context, cmds []redis.Cmder) (usable bool) {
	stop := context.AfterFunc(ctx, l.end)
	_, err := l.client.Pipelined(ctx, func(p redis.Pipeliner) error { return p.BatchProcess(ctx, cmds...) })
	if !l.sent.Load() { // go-redis does not set the error of every command
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
	}
	return stop()
}

// conn notifies its connection of what leaves.
type conn struct {
	net.Conn
	connection *connection
}

// Write hides that the server has closed the connection: what it replied before that is still to be
// read, and the reading ends with the same error.
func (c *conn) Write(b []byte) (int, error) {
	if c.connection.ready.Load() {
		c.connection.sent.Store(true)
	}
	n, err := c.Conn.Write(b)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return len(b), nil
	}
	return n, err
}

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// credentials reads the login's files. go-redis calls it for each connection.
func (s *sink) credentials(context.Context) (user, password string, err error) {
	if s.cfg.Auth == nil {
		return "", "", nil
	}
	return files.Login("auth", s.cfg.Auth)
}

// newCluster returns what knows which node has which slot. Deliveries do not go through it.
func (s *sink) newCluster() *redis.ClusterClient {
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: s.cfg.Addresses, Dialer: s.dial, CredentialsProviderContext: s.credentials,
		PoolSize: 1, PipelinePoolSize: -1, MaxRedirects: -1, DialerRetries: 1, DialTimeout: connectTimeout,
		ReadTimeout: connectTimeout, ContextTimeoutEnabled: true, Protocol: 2, DisableIdentity: true,
	})
}

// addresses returns a function that finds the server of a stream, for one delivery: each is looked up once.
func (s *sink) addresses(ctx, limited context.Context) func(stream string) (string, error) {
	type reply struct {
		address string
		err     error
	}
	known := map[string]reply{}
	return func(stream string) (string, error) {
		if s.cluster == nil {
			return s.cfg.Addresses[0], nil
		}
		a, ok := known[stream]
		if !ok {
			if node, err := s.cluster.MasterForKey(limited, stream); err != nil {
				a.err = s.unreachable(ctx, s.At, err)
			} else {
				a.address = node.Options().Addr
			}
			known[stream] = a
		}
		return a.address, a.err
	}
}

// masters are the addresses of all servers that take events, as they are now.
func (s *sink) masters(ctx context.Context) (addresses []string, err error) {
	if s.cluster == nil {
		return s.cfg.Addresses, nil
	}
	var mu sync.Mutex
	err = s.cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		addresses = append(addresses, node.Options().Addr)
		return nil
	})
	return addresses, err
}

// redirect turns an entry to the node that its reply names, and reports whether there is one. Such an
// reply says that the entry was not added.
func (s *sink) redirect(en *entry) bool {
	if s.cluster == nil || en.err == nil {
		return false
	}
	to, moved := redis.IsMovedError(en.err)
	if moved {
		s.cluster.ReloadState(context.Background()) // in the background
	} else if to, en.redirected = redis.IsAskError(en.err); !en.redirected {
		return false
	}
	host, port, err := net.SplitHostPort(to)
	if err != nil {
		return false
	}
	if host == "" { // the node does not know its own name: it is the one that replied
		host, _, _ = net.SplitHostPort(en.address)
	}
	en.address, en.redirected = net.JoinHostPort(host, port), !moved
	return true
}
