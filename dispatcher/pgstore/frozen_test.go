package pgstore_test

import (
	"context"
	"io"
	"net"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// A worker that stops reading in the middle of a claim gives all its rows up when the lease would have
// ended, with and without order per key: the server ends the transaction. It is stopped by a proxy that
// reads no more, as a process that was frozen does.
// CONTRACT: C-33
func TestFrozenReader(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string]*dispatcher.KeyOrder{"None": nil, "Key": {PerKey: 10}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const rows, lease = 80, 3 * time.Second
			dsn := pgtest.Migrated(t)
			o := newOutbox(t, dsn)
			pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload)
				select gen_random_uuid(), 'shop', 'orders', (n % 40)::text, to_jsonb(repeat('x', 250000)) from generate_series(1, $1::integer) as n`, rows)

			through := newProxy(t, dsn)
			frozen := pgstore.New(pgtest.Pool(t, through.dsn+"&application_name=frozen"), pgstore.Options{Schema: pgtest.Schema, Namespace: "shop"})
			if _, err := frozen.Schema(t.Context()); err != nil { // connects
				t.Fatal(err)
			}
			through.freezeAfter(256 << 10)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan int, 1)
			go func() {
				claimed, _ := frozen.Claim(ctx, dispatcher.ClaimRequest{
					Shares: []dispatcher.Share{{Topic: "orders", Limit: rows}}, Lease: lease, MaxAttempts: 10, Keys: keys,
				})
				ended <- len(claimed.Events)
			}()
			// The rows are locked before the first of them is sent. How long the server waits is too short to look for.
			o.eventually("the worker stopped in the middle of the claim", through.frozen)

			other, got := o.Store("shop", uuid.New()), 0
			o.eventually("another worker has all rows", func() bool {
				claimed, err := other.Claim(t.Context(), dispatcher.ClaimRequest{
					Shares: []dispatcher.Share{{Topic: "orders", Limit: rows}}, Lease: time.Hour, MaxAttempts: 10, Keys: keys,
				})
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range claimed.Events {
					if e.Attempt != 1 {
						t.Errorf("event %s is at attempt %d, want 1: the frozen claim was rolled back", e.ID, e.Attempt)
					}
				}
				lost, err := other.Ack(t.Context(), leasesOf(claimed.Events))
				if err != nil || len(lost) > 0 {
					t.Errorf("lost %v, %v", lost, err)
				}
				got += len(claimed.Events)
				return got >= rows
			})
			cancel()
			if n := <-ended; got != rows || n != 0 {
				t.Errorf("the other worker had %d rows, and the frozen one %d, want %d and 0", got, n, rows)
			}
		})
	}
}

// proxy is a way to a server that can stop reading from it.
type proxy struct {
	dsn  string
	left atomic.Int64 // bytes that it reads until it freezes
	done <-chan struct{}
}

func newProxy(t *testing.T, dsn string) *proxy {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	p := &proxy{done: t.Context().Done()}
	p.left.Store(1 << 62)
	server := u.Host
	u.Host = listener.Addr().String()
	p.dsn = u.String()
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go p.pass(client, server)
		}
	}()
	return p
}

func (p *proxy) freezeAfter(bytes int64) { p.left.Store(bytes) }

func (p *proxy) frozen() bool { return p.left.Load() <= 0 }

func (p *proxy) pass(client net.Conn, address string) {
	defer client.Close()
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer server.Close()
	_ = server.(*net.TCPConn).SetReadBuffer(16 << 10)
	go func() { _, _ = io.Copy(server, client) }()
	buffer := make([]byte, 8<<10)
	for p.left.Load() > 0 {
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		p.left.Add(int64(-n))
		if _, err := client.Write(buffer[:n]); err != nil {
			return
		}
	}
	<-p.done
}
