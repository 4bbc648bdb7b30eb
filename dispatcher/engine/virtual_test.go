package engine

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/storetest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// virtual runs a subtest in virtual time.
func virtual(t *testing.T, name string, test func(*testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// newDispatcher makes one that logs nothing, unless cfg has a logger.
func newDispatcher(t *testing.T, store dispatcher.Store, sink dispatcher.Sink, cfg dispatcher.Config) *Dispatcher {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	d, err := New(store, sink, cfg)
	need.OK(t, err)
	return d
}

// begin runs a new dispatcher until stop is called or the test ends.
func begin(t *testing.T, store dispatcher.Store, sink dispatcher.Sink, cfg dispatcher.Config) (d *Dispatcher, stop func()) {
	t.Helper()
	d = newDispatcher(t, store, sink, cfg)
	return d, running(t, d)
}

// running is begin for a dispatcher that is there.
func running(t *testing.T, d *Dispatcher) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		need.Want(t, nil, "%v", <-ended)
	})
	t.Cleanup(stop)
	return stop
}

// passes lets virtual time pass until the condition holds, and returns how long that took: at most limit.
func passes(t *testing.T, limit time.Duration, what string, holds func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !holds() {
		if time.Since(began) > limit {
			t.Fatalf("not within %v: %s", limit, what)
		}
		<-time.After(min(limit/1000, time.Second))
	}
	return time.Since(began)
}

// delivered lets virtual time pass until so many events of a topic are delivered, and returns how long that took.
func delivered(t *testing.T, limit time.Duration, store *storetest.Memory, topic string, n int) time.Duration {
	t.Helper()
	return passes(t, limit, topic+" are delivered", func() bool { return store.Count(topic, "delivered") == n })
}

// onClaim is a store that calls do before each claim.
func onClaim(store dispatcher.Store, do func()) dispatcher.Store {
	return &storetest.Hooked{Store: store, Before: func(_ context.Context, c storetest.Call) error {
		if c.Verb == "claim" {
			do()
		}
		return nil
	}}
}

// slowly takes so long.
func slowly(d time.Duration) func() { return func() { <-time.After(d) } }

// endless is a Store whose topics always have due events. It forgets them when they are written back.
type endless struct {
	dispatcher.Store // what is not implemented here is not called
	lease            atomic.Int64
}

func (s *endless) Claim(_ context.Context, req dispatcher.ClaimRequest) (out dispatcher.Claimed, err error) {
	out.At = time.Now()
	for _, share := range req.Shares {
		for range share.Limit {
			out.Events = append(out.Events, &dispatcher.Event{ID: uuid.New(), Topic: share.Topic, Headers: noHeaders, CreatedAt: out.At, Attempt: 1, LeaseNumber: s.lease.Add(1)})
		}
	}
	<-time.After(time.Millisecond)
	return out, nil
}

var noHeaders = map[string]string{}

func (*endless) Ack(context.Context, []dispatcher.Lease) ([]dispatcher.Lease, error) { return nil, nil }
func (*endless) Nack(context.Context, []dispatcher.Failure) ([]dispatcher.Lease, error) {
	return nil, nil
}
func (*endless) Release(context.Context, []dispatcher.Return) ([]dispatcher.Lease, error) {
	return nil, nil
}
func (*endless) Begin(context.Context, []dispatcher.Lease) ([]dispatcher.Lease, error) {
	return nil, nil
}
func (*endless) Outlive(context.Context, []dispatcher.Lease) ([]dispatcher.Lease, error) {
	return nil, nil
}
func (*endless) Extend(context.Context, []dispatcher.Lease, time.Duration) ([]dispatcher.Lease, error) {
	return nil, nil
}
func (*endless) Schema(context.Context) (dispatcher.Schema, error) {
	return dispatcher.Schema{State: dispatcher.SchemaReady}, nil
}
