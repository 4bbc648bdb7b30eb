package cloudsink

import (
	"errors"
	"io"
	"maps"
	"net"
	"sync"
	"testing"
)

// gate is a way to a server that a test can close, and open again at the same address, or keep from
// passing anything on.
type gate struct {
	t       *testing.T
	address string
	backend string
	waiting chan struct{} // gets a value for what arrives while it hangs

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]chan struct{} // closed when the client has ended
	hang     bool
}

func newGate(t *testing.T, backend string) *gate {
	g := &gate{t: t, backend: backend, waiting: make(chan struct{}, 1), address: "127.0.0.1:0"}
	g.open()
	t.Cleanup(g.close)
	return g
}

func (g *gate) open() {
	listener, err := net.Listen("tcp", g.address)
	if err != nil {
		g.t.Error(err)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.address, g.listener, g.conns = listener.Addr().String(), listener, map[net.Conn]chan struct{}{}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			g.join(client)
		}
	}()
}

func (g *gate) join(client net.Conn) {
	server, err := net.Dial("tcp", g.backend)
	if err != nil {
		client.Close()
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	ended := make(chan struct{})
	g.conns[client], g.conns[server] = ended, nil
	go func() {
		defer close(ended)
		_, _ = io.Copy(server, reader{g, client})
		server.Close()
		_, _ = io.Copy(io.Discard, client) // the server may end first: the client has ended when it says so
		client.Close()
	}()
	go func() {
		_, _ = io.Copy(client, server)
		_ = client.(*net.TCPConn).CloseWrite()
	}()
}

// reader passes nothing on while the gate hangs.
type reader struct {
	g    *gate
	conn net.Conn
}

func (r reader) Read(p []byte) (int, error) {
	n, err := r.conn.Read(p)
	r.g.mu.Lock()
	hang := r.g.hang
	r.g.mu.Unlock()
	if !hang {
		return n, err
	}
	select {
	case r.g.waiting <- struct{}{}:
	default:
	}
	_, _ = io.Copy(io.Discard, r.conn)
	return 0, errors.New("swallowed")
}

// close breaks all connections and takes no more.
func (g *gate) close() {
	g.mu.Lock()
	g.listener.Close()
	g.mu.Unlock()
	g.cut()
}

// cut breaks all connections.
func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.conns {
		c.Close()
	}
}

// end ends the connections as a server does after its timeout, and waits until the clients have ended them too.
func (g *gate) end() {
	g.mu.Lock()
	conns := maps.Clone(g.conns)
	g.mu.Unlock()
	for conn, ended := range conns {
		if ended != nil {
			_ = conn.(*net.TCPConn).CloseWrite()
			<-ended
		}
	}
}

func (g *gate) hangUp() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hang = true
	return g.waiting
}
