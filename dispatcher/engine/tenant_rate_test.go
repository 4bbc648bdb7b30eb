package engine_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// Two workers deliver 1,000 tenants at one event a second each: none has more than the rate.
//
// CONTRACT: C-51
func TestThousandTenantsHaveTheirRates(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what is delivered, and shows no race")
	}
	r := newRig(t)
	conn, err := r.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = migrations.UpTenants(t.Context(), conn.Conn(), pgtest.Schema)
	conn.Release()
	if err != nil {
		t.Fatal(err)
	}
	const tenants, seconds = 1000, 5
	pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, tenant_id, payload)
		select gen_random_uuid(), 'shop', 'orders', ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, '{}'
		from generate_series(1, $1::integer) as n, generate_series(1, 30)`, tenants)
	var mu sync.Mutex
	delivered, all := map[uuid.UUID]int{}, 0
	sink := &book{respond: func(_ context.Context, e *dispatcher.Event) error {
		mu.Lock()
		defer mu.Unlock()
		delivered[e.TenantID.UUID]++
		all++
		return nil
	}}
	began := time.Now()
	for range 2 {
		store := pgstore.New(r.Pool, pgstore.Options{Schema: pgtest.Schema, Namespace: "shop", Worker: uuid.New(), Dispatcher: "orders", Fair: true})
		r.start(store, sink, dispatcher.Config{Topics: []string{"orders"}, Fairness: dispatcher.FairnessTenant, Logger: slog.New(slog.DiscardHandler),
			TenantRateLimit: dispatcher.Rate{Events: 1, Period: time.Second}})
	}
	time.Sleep(seconds * time.Second)
	r.eventually("each tenant has had an event", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(delivered) == tenants
	})
	mu.Lock()
	defer mu.Unlock()
	passed := time.Since(began).Seconds()
	most := int(passed) + 2
	for tenant, n := range delivered {
		if n > most {
			t.Errorf("tenant %s has %d events in %.1fs, want at most %d", tenant, n, passed, most)
		}
	}
	t.Logf("%d events in %.1fs: %.3f of the rates was used", all, passed, float64(all)/(passed*tenants))
}
