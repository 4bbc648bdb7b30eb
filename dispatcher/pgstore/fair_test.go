package pgstore_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// newTenants is an outbox with the index of tenants.
func newTenants(t *testing.T) outbox {
	o := newOutbox(t, pgtest.Migrated(t))
	upTenants(t, o.Pool)
	return o
}

// upTenants makes the index of tenants.
func upTenants(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	check(t, "connect", err)
	defer conn.Release()
	_, err = migrations.UpTenants(t.Context(), conn.Conn(), pgtest.Schema)
	check(t, "make the index", err)
}

// tenant is the one with a number.
func tenant(n int) uuid.UUID { return uuid.MustParse(fmt.Sprintf("00000000-0000-7000-8000-%012d", n)) }

// addTenants adds rows of tenants of the topic "orders".
func (o outbox) addTenants(from, to, each int, delay time.Duration) {
	o.Helper()
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, tenant_id, payload, next_attempt_at)
		select gen_random_uuid(), 'shop', 'orders', ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, '{}', now() + $4::interval
		from generate_series($1::integer, $2::integer) as n, generate_series(1, $3::integer)`, from, to, each, delay)
}

func (o outbox) claimFair(store dispatcher.Store, limit int, except ...uuid.UUID) map[uuid.UUID]int {
	o.Helper()
	got, err := store.Claim(o.Context(), dispatcher.ClaimRequest{
		Shares: []dispatcher.Share{{Topic: "orders", Limit: limit, Except: except}}, Lease: time.Minute, MaxAttempts: 5, Fair: true,
	})
	check(o.T, "claim", err)
	tenants := map[uuid.UUID]int{}
	for _, e := range got.Events {
		tenants[e.TenantID.UUID]++
	}
	return tenants
}

// Each tenant has its turn, whatever the others have, and what some do not use is for the others.
//
// CONTRACT: C-37
func TestClaimGivesEachTenantItsTurn(t *testing.T) {
	t.Parallel()
	o := newTenants(t)
	store := o.Store("shop", uuid.New())
	o.addTenants(1, 1, 1000, 0)
	o.addTenants(2, 4, 2, 0)
	o.addTenants(5, 5, 40, 0)
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload) select gen_random_uuid(), 'shop', 'orders', '{}' from generate_series(1, 3)`)
	o.addTenants(6, 7, 5, time.Hour)
	got := o.claimFair(store, 64)
	need.That(t, got[tenant(2)] == 2 && got[tenant(3)] == 2 && got[tenant(4)] == 2 && got[uuid.Nil] == 3 && got[tenant(6)] == 0,
		"tenants with few rows have %v, want all of theirs", got)
	need.That(t, got[tenant(1)]+got[tenant(5)] == 55 && got[tenant(1)]-got[tenant(5)] <= 1 && got[tenant(5)]-got[tenant(1)] <= 1,
		"tenants with many rows have %v, want 27 and 28", got)
	if got := o.claimFair(store, 20, tenant(1)); got[tenant(1)] != 0 || got[tenant(5)] != 12 && got[tenant(5)] != 13 {
		t.Errorf("without the first tenant the claim has %v, want what is left of the other", got)
	}
	if got := o.claimFair(store, 900); got[tenant(1)] < 800 {
		t.Errorf("a tenant that is alone has %v, want all of the claim", got)
	}
}

// A claim begins after the tenant where the last one ended: with more tenants than rows none waits for another one's
// second row. Tenants without due rows do not end the search.
//
// CONTRACT: C-37
func TestClaimsBeginAfterTheLastTenant(t *testing.T) {
	t.Parallel()
	o := newTenants(t)
	store := o.Store("shop", uuid.New())
	o.addTenants(1, 50, 3, 0)
	seen := map[uuid.UUID]int{}
	for range 5 {
		for tenant, n := range o.claimFair(store, 10) {
			seen[tenant] += n
		}
	}
	need.Want(t, 50, "after 50 rows %d tenants had a turn, want 50", len(seen))
	for range 10 {
		o.claimFair(store, 10)
	}
	o.addTenants(100, 180, 2, time.Hour)
	o.addTenants(181, 181, 1, 0)
	got := o.claimFair(store, 10)
	need.That(t, got[tenant(181)] == 1, "behind 130 tenants without due rows the claim has %v", got)
	got = o.claimFair(store, 10)
	need.That(t, len(got) == 0, "with nothing due the claim has %v", got)
}

// A store that is to be fair says that the index is missing, with the remedy, and others do not look for it.
//
// CONTRACT: C-37
func TestFairnessNeedsItsIndex(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.stores = pgtest.Pool(t, o.login(migrations.Dispatcher))
	state := func(fair bool) dispatcher.Schema {
		t.Helper()
		s, err := pgstore.New(o.stores, pgstore.Options{Schema: pgtest.Schema, Namespace: "shop", Fair: fair}).Schema(t.Context())
		check(t, "Schema", err)
		return s
	}
	if s := state(true); s.State != dispatcher.SchemaTooOld || !strings.Contains(s.Message, `run "dispatcher migrate up --tenants"`) {
		t.Errorf("without the index it is %+v", s)
	}
	if s := state(false); s.State != dispatcher.SchemaReady {
		t.Errorf("a store without fairness is %+v", s)
	}
	upTenants(t, o.Pool)
	if s := state(true); s.State != dispatcher.SchemaReady {
		t.Errorf("with the index it is %+v", s)
	}
}

// A tenant has no more than its rate from several workers at once, and nearly all of it, and others have theirs.
//
// CONTRACT: C-51
func TestTenantsHaveTheirRates(t *testing.T) {
	t.Parallel()
	o := newTenants(t)
	o.stores = pgtest.Pool(t, o.login(migrations.Dispatcher))
	const tenants, workers = 20, 3
	o.addTenants(1, tenants, 200, 0)
	rate := dispatcher.Rate{Events: 50, Period: time.Second}
	var mu sync.Mutex
	got := map[uuid.UUID]int{}
	var group sync.WaitGroup
	began := o.Now()
	stop := time.Now().Add(2 * time.Second)
	enough := func() bool { // for a rate that is measured
		mu.Lock()
		defer mu.Unlock()
		for n := 1; n <= tenants; n++ {
			if got[tenant(n)] < 60 {
				return false
			}
		}
		return time.Now().After(stop)
	}
	ctx, cancel := context.WithTimeout(t.Context(), need.Wait)
	defer cancel()
	for range workers {
		store := pgstore.New(o.stores, pgstore.Options{Schema: pgtest.Schema, Namespace: "shop", Dispatcher: "orders"})
		group.Go(func() {
			for !enough() {
				c, err := store.Claim(ctx, dispatcher.ClaimRequest{
					Shares: []dispatcher.Share{{Topic: "orders", Limit: 100}}, Lease: time.Minute, MaxAttempts: 5, Fair: true, TenantRate: rate,
				})
				if err != nil {
					t.Errorf("claim: %v", err)
					return
				}
				mu.Lock()
				for _, e := range c.Events {
					got[e.TenantID.UUID]++
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	seconds := o.Now().Sub(began).Seconds()
	most, all := int(50*seconds)+12+1, 0
	for n := 1; n <= tenants; n++ {
		all += got[tenant(n)]
		events := got[tenant(n)]
		need.That(t, events <= most, "tenant %d has %d events in %.1fs, want at most %d", n, events, seconds, most)
	}
	t.Logf("%.3f of the rate was used", float64(all)/(50*seconds*tenants))
}

// A claim gives a tenant no more than its rate, also of what others leave, and leaves one alone that another claim counts
// for.
//
// CONTRACT: C-51
func TestClaimGivesATenantNoMoreThanItsRate(t *testing.T) {
	t.Parallel()
	o := newTenants(t)
	store := pgstore.New(o.stores, pgstore.Options{Schema: pgtest.Schema, Namespace: "shop", Dispatcher: "orders"})
	o.addTenants(1, 1, 100, 0)
	o.addTenants(2, 2, 1, time.Hour)
	claim := func(limit, events int, period time.Duration, over bool) int {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), need.Wait)
		defer cancel()
		c, err := store.Claim(ctx, dispatcher.ClaimRequest{
			Shares: []dispatcher.Share{{Topic: "orders", Limit: limit}}, Lease: time.Minute, MaxAttempts: 5, Fair: true,
			TenantRate: dispatcher.Rate{Events: events, Period: period},
		})
		check(t, "claim", err)
		got := len(c.OverRate) == 1 && c.OverRate[0] == "orders"
		need.That(t, got == over, "a claim of %d events: topics with a tenant that has used its rate are %v, want orders among them: %t", len(c.Events), c.OverRate, over)
		return len(c.Events)
	}
	need.Want(t, 0, "a tenant that is new has %d events at once, want none before it is counted", claim(4, 1, time.Hour, true))
	tx, err := o.Begin(t.Context())
	check(t, "begin", err)
	_, err = tx.Exec(t.Context(), `select from outbox.outbox_rates for update`)
	check(t, "lock", err)
	need.Want(t, 0, "a tenant for which another claim counts has %d events", claim(4, 1, time.Hour, true))
	check(t, "roll back", tx.Rollback(t.Context()))
	need.Want(t, 1, "with one event an hour a claim of 4 has %d events", claim(4, 1, time.Hour, false))
	need.Want(t, 0, "the next has %d", claim(4, 1, time.Hour, true))
	pgtest.Exec(o, `update outbox.outbox_rates set used_until = now() - interval '1 hour'`)
	if n := claim(16, 40, time.Second, false); n != 10 { // 8 of its turn, and 2 of the 8 that the other leaves
		t.Errorf("with 10 events in a quarter of a second a claim of 16 has %d", n)
	}
	pgtest.Want(o, 1, "%d tenants have nothing saved up, want the one that rested for an hour", `select count(*) from outbox.outbox_rates where used_until > now() - interval '1 minute'`)
	// As of one event a day, before the rate was raised, or of a clock that was ahead.
	for range 2 {
		pgtest.Exec(o, `update outbox.outbox_rates set used_until = now() + interval '1 day'`)
		need.Want(t, 4, "after a lower rate a claim of 4 has %d", claim(4, 40, time.Second, false))
	}
}

// Where bytes bind, tenants have their turns over claims, and no rate is charged for rows that bytes have no room for.
//
// CONTRACT: C-37, C-51
func TestFairClaimsWithinBytesTakeTurns(t *testing.T) {
	t.Parallel()
	o := newTenants(t)
	store := pgstore.New(o.stores, pgstore.Options{Schema: pgtest.Schema, Namespace: "shop", Dispatcher: "orders"})
	add := func(tenants, each int) {
		o.addTenants(1, tenants, each, 0)
		pgtest.Exec(o, `update outbox.outbox_events set payload = to_jsonb(repeat('x', 1000)), size_bytes = 1002`)
	}
	claim := func(rate dispatcher.Rate) (tenants []uuid.UUID, over bool) {
		t.Helper()
		c, err := store.Claim(t.Context(), dispatcher.ClaimRequest{
			Shares: []dispatcher.Share{{Topic: "orders", Limit: 10}}, Lease: time.Minute, MaxAttempts: 5, MaxBytes: 1010, Fair: true, TenantRate: rate,
		})
		check(t, "claim", err)
		for _, e := range c.Events {
			tenants = append(tenants, e.TenantID.UUID)
		}
		return tenants, len(c.OverRate) > 0
	}
	add(3, 20)
	pgtest.Exec(o, `update outbox.outbox_events set attempts = 5 where id = (select id from outbox.outbox_events where tenant_id = $1 order by next_attempt_at, id limit 1)`, tenant(3)) // it becomes dead: that takes no turn
	for n := range 7 {
		got, _ := claim(dispatcher.Rate{})
		need.That(t, len(got) == 1 && got[0] == tenant(n%3+1), "claim %d has %v, want tenant %d", n+1, got, n%3+1)
	}
	pgtest.Exec(o, `delete from outbox.outbox_events`)
	add(3, 1)
	hourly := dispatcher.Rate{Events: 1, Period: time.Hour}
	claim(hourly) // from the next on they are counted for
	for n := range 3 {
		if got, over := claim(hourly); len(got) != 1 || over {
			t.Errorf("with room for one event, claim %d of three tenants has %v, a tenant over its rate: %t", n+1, got, over)
		}
	}
}

// A fair claim reads what its rows and its turns need, with any number of tenants and with any statistics.
//
// CONTRACT: C-2, C-37
func TestFairClaimsKeepTheirPlans(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	const mostBuffers = 2000 // 1,720 when other tests keep row versions alive
	for _, tenants := range []int{1, 100, 10_000} {
		t.Run(fmt.Sprint(tenants), func(t *testing.T) {
			t.Parallel()
			p := newPlanned(t, pgtest.Migrated(t))
			upTenants(t, p.Pool)
			claim := func(when string) {
				t.Helper()
				pgtest.Exec(p, `deallocate all`)
				pgtest.Exec(p, `prepare claim_fair as `+pgstore.ClaimFairSQL())
				for range 2 {
					got := p.explain(fmt.Sprintf(`execute claim_fair ('shop', '{orders}', '{100}', '{-infinity}',
						'{00000000-0000-7000-8000-000000000050}', 10, 33554432, '%s', '1 minute', false, 33554432, null, '{}', '{}', '', null, 1)`, worker))
					t.Logf("%d tenants, %s: %d buffers, %.1f ms for %d rows", tenants, when, got.buffers(), got.millis, got.written())
					need.That(t, got.written() == 100 && got.buffers() <= mostBuffers && !got.has("Seq Scan"),
						"%s: %d buffers for %d rows, indexes %v; want at most %d for 100", when, got.buffers(), got.written(), got.indexes(), mostBuffers)
				}
			}
			p.addTenants(1, tenants, 40_000/tenants, 0)
			claim("statistics of an empty table")
			pgtest.Exec(p, `vacuum analyze outbox.outbox_events`)
			claim("analyzed")
		})
	}
}
