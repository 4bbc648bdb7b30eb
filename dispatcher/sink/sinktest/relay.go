package sinktest

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
)

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
