package engine_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// hang is a sink some of whose topics do not respond until they are released.
type hang struct {
	*book
	hung    atomic.Pointer[map[string]bool]
	letGo   chan struct{}
	waiting atomic.Int64 // calls
	most    atomic.Int64 // of these at once
}

func newHang(topics ...string) *hang {
	h := &hang{book: &book{}, letGo: make(chan struct{})}
	h.hang(topics...)
	h.respond = func(ctx context.Context, e *dispatcher.Event) error {
		if !(*h.hung.Load())[e.Topic] {
			return nil
		}
		n := h.waiting.Add(1)
		defer h.waiting.Add(-1)
		for most := h.most.Load(); n > most && !h.most.CompareAndSwap(most, n); most = h.most.Load() {
		}
		select {
		case <-h.letGo:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return h
}

func (h *hang) hang(topics ...string) {
	hung := map[string]bool{}
	for _, topic := range topics {
		hung[topic] = true
	}
	h.hung.Store(&hung)
}

// The destination of a topic does not respond, and no breaker knows it yet. Whatever its events are, those
// of the other topics are all delivered meanwhile, and its own when it responds again.
//
// CONTRACT: C-32
// REQUIREMENT: RULE-010-022, STORAGE-48
func TestHangOfOneTopic(t *testing.T) {
	const events = 1000
	for name, test := range map[string]struct {
		hung   []string
		insert string // columns and their values
		batch  int
		cfg    dispatcher.Config
		atMost int64 // calls that hang
	}{
		"small":         {hung: []string{"a"}, atMost: 14},
		"one after one": {hung: []string{"a"}, cfg: dispatcher.Config{Concurrency: 2}, atMost: 1},
		"two topics":    {hung: []string{"a", "c"}, atMost: 15},
		"large":         {hung: []string{"a"}, insert: `repeat('x', 10000)`, cfg: dispatcher.Config{MaxBytes: 100_000}, atMost: 14},
		"many at once":  {hung: []string{"a"}, batch: 100, cfg: dispatcher.Config{BatchSize: 50}, atMost: 14},
		"order per key": {hung: []string{"a"}, cfg: dispatcher.Config{Ordering: dispatcher.OrderingKey}, atMost: 14},
		"named":         {hung: []string{"a"}, cfg: dispatcher.Config{Topics: []string{"a", "b", "c"}}, atMost: 14},
	} {
		t.Run(name, func(t *testing.T) {
			r, sink := newRig(t), newHang(test.hung...)
			sink.batch = test.batch
			payload := test.insert
			if payload == "" {
				payload = `'x'::text`
			}
			for _, topic := range test.hung {
				pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload)
					select gen_random_uuid(), 'shop', $1::text, (n % 100)::text, to_jsonb(`+payload+`) from generate_series(1, $2::integer) n`, topic, events)
			}
			r.enqueue("b", events)
			r.start(r.store(), sink, test.cfg)
			r.eventually("the other topic is delivered", func() bool { return sink.topic("b") == events })
			r.enqueue("b", events)
			r.eventually("also what comes later", func() bool { return sink.topic("b") == 2*events })
			if n := sink.most.Load(); n == 0 || n > test.atMost {
				t.Errorf("%d calls were waiting for a response, want at most %d", n, test.atMost)
			}
			if sink.topic("a") != 0 {
				t.Error("the topic has responded")
			}
			close(sink.letGo)
			r.eventually("every row is delivered at its first attempt", func() bool {
				return r.count("status = 'delivered' and attempts = 1") == (2+len(test.hung))*events
			})
		})
	}
}

// A topic stops responding while it is the only busy one: what it leaves is enough for the others. One
// that is alone leaves nothing.
//
// CONTRACT: C-32
func TestHangOfABusyTopic(t *testing.T) {
	const events = 1000
	for name, others := range map[string]int{"among others": 1, "alone": 0} {
		t.Run(name, func(t *testing.T) {
			r, sink := newRig(t), newHang()
			r.enqueue("b", others)
			r.enqueue("a", events)
			r.start(r.store(), sink, dispatcher.Config{})
			r.eventually("all is well", func() bool { return r.count("status = 'delivered'") == events+others })
			sink.hang("a")
			r.enqueue("a", events)
			atOnce := int64(16 - 2*others)
			r.eventually("the topic takes what it may", func() bool { return sink.waiting.Load() == atOnce })
			r.enqueue("b", others*events)
			r.eventually("the other topic is delivered", func() bool { return sink.topic("b") == others*(1+events) })
			if n := sink.most.Load(); n != atOnce {
				t.Errorf("%d calls were waiting, want %d", n, atOnce)
			}
			close(sink.letGo)
			r.eventually("all is delivered", func() bool { return r.count("status = 'delivered' and attempts = 1") == 2*events+others*(1+events) })
		})
	}
}

// leftOut lets the destination continue once a claim has left out its topic.
type leftOut struct {
	dispatcher.Store
	topic string
	once  sync.Once
	letGo chan struct{}
}

func (s *leftOut) Claim(ctx context.Context, req dispatcher.ClaimRequest) (dispatcher.Claimed, error) {
	if !slices.ContainsFunc(req.Shares, func(share dispatcher.Share) bool { return share.Topic == s.topic }) {
		s.once.Do(func() { close(s.letGo) })
	}
	return s.Store.Claim(ctx, req)
}

// RunOnce does not take a topic that has enough for now for one that has nothing more.
//
// CONTRACT: C-32
func TestOnceWaitsForASlowTopic(t *testing.T) {
	const events = 100
	r, sink := newRig(t), newHang("a")
	r.enqueue("a", events)
	store := &leftOut{Store: r.store(), topic: "a", letGo: sink.letGo}
	cfg := dispatcher.Config{Topics: []string{"a", "b"}, Concurrency: 2, BatchSize: 10}
	d, err := engine.New(store, sink, quick(cfg))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := d.RunOnce(t.Context(), events); got.Delivered != events || err != nil {
		t.Errorf("RunOnce returned %+v, %v; want %d delivered", got, err, events)
	}
}
