package replay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// fenced is a Sink to a consumer that fences on the token: it refuses one that is not higher than the last of the
// event. It writes down what it delivers of each key.
type fenced struct {
	refuse func(*dispatcher.Event) bool // for good

	mu        sync.Mutex
	tokens    map[uuid.UUID]int64
	running   map[string]bool
	delivered map[string][]int64 // seqs by key
	faults    []string
}

func (f *fenced) Deliver(_ context.Context, batch []*dispatcher.Event) []error {
	errs := make([]error, len(batch))
	for i, e := range batch {
		errs[i] = f.deliver(e)
	}
	return errs
}

func (f *fenced) deliver(e *dispatcher.Event) error {
	f.mu.Lock()
	if f.tokens == nil {
		f.tokens, f.running, f.delivered = map[uuid.UUID]int64{}, map[string]bool{}, map[string][]int64{}
	}
	if f.running[e.AggregateID] {
		f.faults = append(f.faults, fmt.Sprintf("seq %d of key %s is delivered during another", e.Seq, e.AggregateID))
	}
	if e.LeaseNumber <= f.tokens[e.ID] {
		f.faults = append(f.faults, fmt.Sprintf("seq %d has the token %d after %d", e.Seq, e.LeaseNumber, f.tokens[e.ID]))
	}
	f.running[e.AggregateID], f.tokens[e.ID] = true, e.LeaseNumber
	refused := f.refuse(e)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.running, e.AggregateID)
		if !refused {
			f.delivered[e.AggregateID] = append(f.delivered[e.AggregateID], e.Seq)
		}
	}()
	if refused {
		return dispatcher.Permanent(dispatcher.ReasonPermanentFailure, errors.New("422"))
	}
	return nil
}

func (*fenced) Probe(context.Context) error { return nil }
func (*fenced) BatchSize() int              { return 1 }
func (*fenced) Close(context.Context) error { return nil }

// engine runs a dispatcher with order per key until the test ends.
func (r rig) engine(sink dispatcher.Sink, onDead dispatcher.OnDead) {
	r.Helper()
	d, err := engine.New(pgstore.New(r.Pool, pgstore.Options{Namespace: "shop"}), sink, dispatcher.Config{
		Ordering: dispatcher.OrderingKey, OnDead: onDead, BatchSize: 20, Concurrency: 4, Lease: 30 * time.Second,
		PollInterval: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	r.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			r.Errorf("Run returned %v", err)
		}
	})
}

// Two dispatchers deliver new events while the dead ones are replayed, and a consumer that fences on the token accepts
// all. Of each key the replayed events arrive in order. With onDead Block a key's later events arrive after them, so the
// order of the key is complete, and none of a key arrives when one is dead again.
// CONTRACT: C-27, C-42, C-50
func TestReplayWithConcurrentDispatchers(t *testing.T) {
	for _, onDead := range []dispatcher.OnDead{dispatcher.OnDeadContinue, dispatcher.OnDeadBlock} {
		t.Run(string(onDead), func(t *testing.T) {
			r := newRig(t)
			const keys, events = 5, 60
			enqueue := func() {
				pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload)
					select gen_random_uuid(), 'shop', 'orders', n % $1::integer, '{}' from generate_series(1, $2::integer) as n`, keys, events)
			}
			broken, again := true, int64(3) // an event of key 3 is dead again
			sink := &fenced{}
			sink.refuse = func(e *dispatcher.Event) bool { return broken && e.Seq <= events/2 || e.Seq == again }
			enqueue()
			r.engine(sink, onDead)
			r.engine(sink, onDead)
			dead := keys // of each the first one, which blocks it
			if onDead == dispatcher.OnDeadContinue {
				dead = events / 2
			}
			eventually(t, "they are dead", func() bool {
				return pgtest.Value[int](r, `select count(*) from outbox.outbox_events where status = 'dead'`) == dead &&
					(onDead == dispatcher.OnDeadBlock || pgtest.Value[int](r, `select count(*) from outbox.outbox_events where live`) == 0)
			})
			sink.mu.Lock()
			broken = false
			sink.delivered = map[string][]int64{}
			sink.mu.Unlock()

			o := request()
			r.begin(o)
			enqueue()
			p, err := r.replays.Run(t.Context(), o.ID, replay.RunOptions{Wait: true, Poll: 50 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			if p.Delivered != int64(dead)-1 || p.DeadAgain != 1 || p.Matched != int64(dead) {
				t.Errorf("it ended with %v; want all but one delivered", p)
			}
			blocked := 0
			if onDead == dispatcher.OnDeadBlock {
				blocked = 2*events/keys - 1
			}
			eventually(t, "the others are delivered", func() bool {
				return pgtest.Value[int](r, `select count(*) from outbox.outbox_events where live`) == blocked
			})
			r.checkOrder(sink, onDead, events/2)
		})
	}
}

// checkOrder checks what was delivered since the replay began; the first so many events were dead.
func (r rig) checkOrder(sink *fenced, onDead dispatcher.OnDead, dead int64) {
	r.Helper()
	sink.mu.Lock()
	defer sink.mu.Unlock()
	for _, fault := range sink.faults {
		r.Error(fault)
	}
	for key, seqs := range sink.delivered {
		var last int64
		for _, seq := range seqs {
			if onDead == dispatcher.OnDeadContinue && seq > dead {
				continue // those that were not blocked, and new ones
			}
			if seq <= last {
				r.Errorf("of key %s seq %d is delivered after %d", key, seq, last)
			}
			last = seq
		}
		if key == "3" && last != 0 && onDead == dispatcher.OnDeadBlock {
			r.Errorf("seq %d of key 3 is delivered after an event that is dead again, want none", last)
		}
	}
}
