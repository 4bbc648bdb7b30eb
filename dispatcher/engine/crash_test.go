package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// mortal is the store as a process has it that may end as by kill -9: from then on nothing of it arrives.
type mortal struct {
	dispatcher.Store
	gone atomic.Bool
	ends chan struct{}
	once sync.Once
}

var errEnded = errors.New("the process has ended")

func (m *mortal) kill() { m.once.Do(func() { m.gone.Store(true); close(m.ends) }) }

func (m *mortal) err() error {
	if m.gone.Load() {
		return errEnded
	}
	return nil
}

func (m *mortal) Claim(ctx context.Context, req dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	if err := m.err(); err != nil {
		return dispatcher.Claimed{}, err
	}
	return m.Store.Claim(ctx, req)
}

func (m *mortal) Begin(ctx context.Context, l []dispatcher.Lease) ([]dispatcher.Lease, error) {
	if err := m.err(); err != nil {
		return nil, err
	}
	return m.Store.Begin(ctx, l)
}

func (m *mortal) Ack(ctx context.Context, l []dispatcher.Lease) ([]dispatcher.Lease, error) {
	if err := m.err(); err != nil {
		return nil, err
	}
	return m.Store.Ack(ctx, l)
}

func (m *mortal) Nack(ctx context.Context, f []dispatcher.Failure) ([]dispatcher.Lease, error) {
	if err := m.err(); err != nil {
		return nil, err
	}
	return m.Store.Nack(ctx, f)
}

func (m *mortal) Extend(ctx context.Context, l []dispatcher.Lease, d time.Duration) ([]dispatcher.Lease, error) {
	if err := m.err(); err != nil {
		return nil, err
	}
	return m.Store.Extend(ctx, l, d)
}

func (m *mortal) Release(ctx context.Context, r []dispatcher.Return) ([]dispatcher.Lease, error) {
	if err := m.err(); err != nil {
		return nil, err
	}
	return m.Store.Release(ctx, r)
}

// live runs a process until it ends or done holds. It is started again after its grace period. The sink's function
// is not called for a process that has ended.
func live(t *testing.T, store dispatcher.Store, cfg dispatcher.Config, limit time.Duration, done func() bool,
	deliver func(m *mortal, e *dispatcher.Event) error) (ended bool) {
	m := &mortal{Store: store, ends: make(chan struct{})}
	sink := &stubSink{deliver: func(_ context.Context, e *dispatcher.Event) error {
		if err := m.err(); err != nil {
			return err
		}
		return deliver(m, e)
	}}
	_, stop := begin(t, m, sink, cfg)
	defer stop()
	passes(t, limit, "the process ends, or all is done", func() bool { return m.err() != nil || done() })
	return m.err() != nil
}

// One event that ends the process which delivers it, wherever it stands among others, is found: the others are
// delivered, at their first attempt.
// CONTRACT: C-21, C-22, C-33
func TestEventThatEndsTheProcess(t *testing.T) {
	const events = 1000
	for _, culprit := range []int64{1, 51, 500, 1000} {
		t.Run(fmt.Sprint(culprit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newMemory()
				store.enqueue("orders", events)
				began, crashes := time.Now(), 0
				done := func() bool {
					return store.count("orders", "delivered") == events-1 && store.count("orders", "dead") == 1
				}
				for !done() {
					if live(t, store, dispatcher.Config{}, 10*time.Minute, done, func(m *mortal, e *dispatcher.Event) error {
						if e.Seq == culprit {
							m.kill()
						}
						<-time.After(20 * time.Millisecond)
						return m.err()
					}) {
						crashes++
					}
				}
				took := time.Since(began)
				t.Logf("%d crashes in %v", crashes, took)
				if crashes != 5 || took > 10*time.Minute {
					t.Errorf("%d crashes in %v, want 5 within 10 minutes", crashes, took)
				}
				if n := store.attempts("orders"); n != events {
					t.Errorf("%d attempts were spent on %d events; a crash charges none", n, events)
				}
			})
		})
	}
}

// A process that is killed again and again while its destination hangs makes nothing dead that was never sent.
// CONTRACT: C-21, C-22, C-33
func TestKilledProcessKillsNothingUnsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		store.enqueue("orders", 300)
		var mu sync.Mutex
		sent := map[uuid.UUID]int{}
		never := func() bool { return false }
		cfg := dispatcher.Config{Lease: 3 * time.Second, MaxAttempts: 5}
		for range 20 {
			live(t, store, cfg, time.Hour, never, func(m *mortal, e *dispatcher.Event) error {
				mu.Lock()
				sent[e.ID]++
				mu.Unlock()
				select {
				case <-time.After(2 * time.Second):
					m.kill()
				case <-m.ends:
				}
				return m.err()
			})
		}
		all := func() bool { return store.count("orders", "delivered")+store.count("orders", "dead") == 300 }
		live(t, store, cfg, 20*time.Minute, all, func(*mortal, *dispatcher.Event) error { return nil })
		for id, r := range store.rows {
			if r.status == "dead" && sent[id] < 4 {
				t.Errorf("event %s is dead, and was sent %d times", id, sent[id])
			}
		}
		t.Logf("%d dead", store.count("orders", "dead"))
	})
}
