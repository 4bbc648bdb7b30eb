package kafkasink

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Events come while the broker is unreachable. The first of them is there soon after the broker responds: what the
// engine, this sink and the client wait for one after the other no longer is than a few seconds in all.
//
// CONTRACT: C-32
func TestFirstDeliveryAfterAnOutage(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and shows no race that the others do not")
	}
	topic := newTopic(t, 1)
	s, err := New(plainConfig(t, ""), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pool := pgtest.Pool(t, pgtest.Migrated(t))
	store := pgstore.New(pool, pgstore.Options{Namespace: "shop"})
	d, err := engine.New(store, s, dispatcher.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = d.Run(ctx) })
	t.Cleanup(func() { cancel(); group.Wait() })

	enqueue := func() {
		t.Helper()
		if _, err := pool.Exec(t.Context(), `insert into outbox.outbox_events (id, namespace, topic, payload)
			values ($1, 'shop', $2, '{}')`, uuid.New(), topic); err != nil {
			t.Fatal(err)
		}
	}
	delivered := func() (n int) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), `select count(*) from outbox.outbox_events where status = 'delivered'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	// until waits, and returns when it holds.
	until := func(what string, limit time.Duration, holds func() bool) time.Time {
		t.Helper()
		pgtest.Eventually(t, what, limit, holds)
		return time.Now()
	}
	enqueue()
	until("the event is delivered", time.Minute, func() bool { return delivered() == 1 })

	restart := sinktest.Kill(t, theBroker.Broker)
	opened := until("the circuit is open", 2*time.Minute, func() bool { enqueue(); return d.Snapshot().Breaker != dispatcher.BreakerClosed })
	until("the waits are as long as they get", time.Minute, func() bool { return time.Since(opened) > 20*time.Second })
	restart() // until the broker responds
	another, err := New(plainConfig(t, ""), nil, nil)
	sinktest.Opened(t, another, err)
	event := sinktest.NewEvent()
	event.Topic = topic
	responded := until("another sink delivers", time.Minute, func() bool { return another.Deliver(t.Context(), []*dispatcher.Event{event})[0] == nil })
	if n := delivered(); n > 1 {
		t.Logf("the first event was there before the test knew of the broker")
	}
	took := until("an event is delivered after the broker responds", time.Minute, func() bool { return delivered() > 1 }).Sub(responded)
	t.Logf("the first event was delivered %v after the broker responded", took)
	if most := 10 * time.Second; took > most {
		t.Errorf("the first event was delivered %v after the broker responded, want at most %v", took, most)
	}
}
