package engine_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// One event in the middle of a topic is not admitted. Two workers deliver none of that type, spend no attempt on
// what waits, and keep the order of each key, before and after it is admitted. Another topic flows.
//
// CONTRACT: C-82, C-50
func TestGateOnTheTable(t *testing.T) {
	const events, keys = 600, 13
	for _, batch := range []int{1, 7} {
		t.Run(fmt.Sprint("batch ", batch), func(t *testing.T) {
			r := newRig(t)
			r.enqueueKeys(events, keys)
			pgtest.Exec(r, "update outbox.outbox_events set event_type = case when seq % 300 = 150 then 'shipped' else 'placed' end")
			sink := &queue{batch: batch, keys: keys}
			var open atomic.Bool
			var early atomic.Int64
			sink.respond = func(_ context.Context, e *dispatcher.Event) error {
				if e.EventType == "shipped" && !open.Load() {
					early.Add(1)
				}
				return nil
			}
			var workers []*running
			for range 2 {
				d, err := engine.New(r.store(), ofOrders{sink}, quick(dispatcher.Config{BatchSize: 50, Concurrency: 4, Ordering: dispatcher.OrderingKey, MaxAttempts: 1}))
				if err != nil {
					t.Fatal(err)
				}
				d.Admit(func(eventType string) bool { return eventType == "placed" })
				workers = append(workers, r.run(d))
			}
			held := func(w *running) bool { return len(w.Snapshot().Gated) == 1 }
			r.eventually("the topic is paused", func() bool { return slices.ContainsFunc(workers, held) })
			pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, event_type, payload) values ($1, 'shop', 'refunds', 'placed', '{}')`, uuid.New())
			r.eventually("another topic flows", func() bool { return r.count("topic = 'refunds' and status = 'delivered'") == 1 })
			if n := r.count("event_type = 'shipped' and status in ('delivered', 'dead')"); n != 0 || early.Load() != 0 {
				t.Errorf("%d events of the type have an outcome, %d were delivered", n, early.Load())
			}
			if n := r.count("status = 'dead' or status = 'pending' and attempts > 0"); n != 0 { // one may be looked at
				t.Errorf("%d events have spent attempts without a delivery", n)
			}
			open.Store(true)
			for _, w := range workers {
				w.Admit(func(eventType string) bool { return eventType == "placed" || eventType == "shipped" })
			}
			r.eventually("all is delivered", func() bool { return r.count("status = 'delivered' and attempts = 1") == events+1 })
			sink.check(t)
		})
	}
}

// ofOrders writes down the order of topic orders alone.
type ofOrders struct{ *queue }

func (s ofOrders) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	if batch[0].Topic != "orders" {
		return make([]error, len(batch))
	}
	return s.queue.Deliver(ctx, batch)
}
