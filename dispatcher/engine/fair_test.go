package engine

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

func tenantOf(n int) uuid.NullUUID { return uuid.NullUUID{UUID: uuid.UUID{15: byte(n)}, Valid: true} }

// others delivers 100 events a second of 50 tenants for 20 seconds, with a flood of another tenant or none, and returns the 99th percentile
// of the time from an event's creation to its delivery.
func others(t *testing.T, cfg dispatcher.Config, flood int) (p99 time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		store.claim = func(context.Context, int) error { time.Sleep(time.Millisecond); return nil }
		var mu sync.Mutex
		var waits []time.Duration
		served := 0
		sink := &stubSink{deliver: func(_ context.Context, e *dispatcher.Event) error {
			<-time.After(10*time.Millisecond + rand.N(20*time.Millisecond))
			mu.Lock()
			defer mu.Unlock()
			if e.TenantID == tenantOf(0) {
				served++
			} else {
				waits = append(waits, time.Since(e.CreatedAt))
			}
			return nil
		}}
		cfg.Concurrency, cfg.Topics = 8, []string{"orders"}
		store.enqueueOf(tenantOf(0), "orders", flood)
		begin(t, store, sink, cfg)
		for i := range 2000 {
			store.enqueueOf(tenantOf(1+i%50), "orders", 1)
			<-time.After(10 * time.Millisecond)
		}
		<-time.After(time.Second)
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(waits)
		if flood > 0 && (served == 0 || served >= flood) {
			t.Errorf("%d of the flood of %d were delivered; it must continue, and last", served, flood)
		}
		if p99 = time.Hour; len(waits) == 2000 { // otherwise some wait for the whole flood
			p99 = waits[len(waits)*99/100]
		}
	})
	return p99
}

// The flood of one tenant does not hold up the others of its topic.
//
// CONTRACT: C-37
func TestLongFloodOfOneTenant(t *testing.T) {
	skipLong(t)
	fair := dispatcher.Config{Fairness: dispatcher.FairnessTenant}
	alone, flooded, unfair := others(t, fair, 0), others(t, fair, 9000), others(t, dispatcher.Config{}, 9000)
	t.Logf("99 %% of the others within %v alone, %v with the flood, %v without fairness", alone, flooded, unfair)
	if flooded > alone*6/5 {
		t.Errorf("99 %% of the others within %v, and with the flood within %v; want at most 1.2 times as much", alone, flooded)
	}
	if unfair < 2*flooded {
		t.Errorf("without fairness %v, too little to prove anything", unfair)
	}
}

// The queue is in the order of turns: a tenant's row waits for one row of each other tenant, and not for the second one.
//
// CONTRACT: C-37
func TestQueueIsInTurns(t *testing.T) {
	topic := &topic{fair: true, calls: map[uuid.UUID]int{}}
	add := func(tenants ...int) {
		for _, n := range tenants {
			topic.insert(&row{event: &dispatcher.Event{TenantID: tenantOf(n)}})
		}
	}
	next := func(n int) (tenants []int) {
		rows := topic.queued[:n]
		for _, r := range rows {
			tenants = append(tenants, int(r.event.TenantID.UUID[15]))
		}
		topic.queued = topic.queued[n:]
		topic.beginTurn(rows)
		return tenants
	}
	add(1, 1, 1, 1, 2, 3, 2)
	if got := next(4); !slices.Equal(got, []int{1, 2, 3, 1}) {
		t.Errorf("the first rows are of %v", got)
	}
	add(4, 3)
	if got := next(5); !slices.Equal(got, []int{2, 4, 3, 1, 1}) {
		t.Errorf("the last rows are of %v", got)
	}
}

// While the calls of one tenant hang, the last calls are for the others.
//
// CONTRACT: C-37
func TestTenantWhoseCallsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		others := 0
		sink := &stubSink{deliver: func(ctx context.Context, e *dispatcher.Event) error {
			if e.TenantID == tenantOf(0) {
				<-ctx.Done()
				return ctx.Err()
			}
			others++
			return nil
		}}
		store.enqueueOf(tenantOf(0), "orders", 1000)
		store.enqueueOf(tenantOf(1), "orders", 1)
		begin(t, store, sink, dispatcher.Config{Concurrency: 8, Topics: []string{"orders"}, Fairness: dispatcher.FairnessTenant})
		<-time.After(time.Second)
		for i := range 20 {
			store.enqueueOf(tenantOf(1+i%3), "orders", 1)
			<-time.After(100 * time.Millisecond)
		}
		<-time.After(2 * time.Second)
		if others != 21 {
			t.Errorf("%d events of the others were delivered while calls hang, want 21", others)
		}
	})
}
