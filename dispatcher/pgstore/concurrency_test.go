package pgstore_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// fill commits n due events in each topic in one statement, with ids that rise as version 7 does.
func (o outbox) fill(n int, topics ...string) {
	o.Helper()
	for _, topic := range topics {
		pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload)
			select (lpad(to_hex(n), 8, '0') || substr(md5(random()::text), 1, 24))::uuid, 'shop', $1, '{}'
			from generate_series(1, $2::integer) as n`, topic, n)
	}
}

func share(topic string, limit int) dispatcher.ClaimRequest {
	return dispatcher.ClaimRequest{Shares: []dispatcher.Share{{Topic: topic, Limit: limit}}, Lease: time.Minute, MaxAttempts: 10}
}

func leasesOf(events []*dispatcher.Event) []dispatcher.Lease {
	leases := make([]dispatcher.Lease, len(events))
	for i, e := range events {
		leases[i] = e.Lease()
	}
	return leases
}

// returnsOf gives events back, due as before.
func returnsOf(events []*dispatcher.Event) []dispatcher.Return {
	returns := make([]dispatcher.Return, len(events))
	for i, e := range events {
		returns[i] = dispatcher.Return{Lease: e.Lease()}
	}
	return returns
}

// Eight workers drain ten thousand rows: no row goes to two of them, none is left, and no write-back
// is refused.
// CONTRACT: C-20
// REQUIREMENT: STORAGE-30, cpt-cf-mini-chat-algo-usage-outbox-claim
func TestWorkersClaimEachRowOnce(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	const rows = 10_000
	o.fill(rows/2, "a", "b")
	var (
		group errgroup.Group
		mu    sync.Mutex
		seen  = map[uuid.UUID]int{}
	)
	for range 8 {
		store := o.Store("shop", uuid.New())
		group.Go(func() error {
			for {
				claimed, err := store.Claim(t.Context(), dispatcher.ClaimRequest{
					Shares: []dispatcher.Share{{Topic: "a", Limit: 30}, {Topic: "b", Limit: 30}}, Lease: time.Minute, MaxAttempts: 1,
				})
				if err != nil || len(claimed.Events) == 0 {
					return err
				}
				mu.Lock()
				for _, e := range claimed.Events {
					seen[e.ID]++
				}
				mu.Unlock()
				lost, err := store.Ack(t.Context(), leasesOf(claimed.Events))
				if err != nil || len(lost) > 0 || len(claimed.Dead) > 0 {
					return fmt.Errorf("lost %v, dead %v: %w", lost, claimed.Dead, err)
				}
			}
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("row %s was claimed %d times", id, n)
		}
	}
	if n := pgtest.Value[int](o, `select count(*) from outbox.outbox_events where status = 'delivered' and attempts = 1`); n != rows || len(seen) != rows {
		t.Errorf("%d rows were claimed and %d delivered at the first attempt, want %d", len(seen), n, rows)
	}
}

// One worker's verbs run at the same time on the same rows, in any order, and never wait for each
// other in a circle.
func TestVerbsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fill(300, "a")
	store := o.Store("shop", uuid.New())
	claimed, err := store.Claim(t.Context(), share("a", 300))
	if err != nil {
		t.Fatal(err)
	}
	leases := leasesOf(claimed.Events)
	backwards := slices.Clone(leases)
	slices.Reverse(backwards)
	var group errgroup.Group
	for i := range 40 {
		order := leases
		if i%2 == 0 {
			order = backwards
		}
		group.Go(func() error {
			_, err := store.Extend(t.Context(), order, time.Minute)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// A worker whose clock is off by a quarter of a century does what any other does. Inside a synctest
// bubble Go's clock says the year 2000.
// CONTRACT: C-3
func TestWrongClock(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fill(4, "a")
	from := o.Now()
	var events []*dispatcher.Event
	synctest.Test(t, func(t *testing.T) {
		if year := time.Now().Year(); year != 2000 {
			t.Fatalf("the clock says %d", year)
		}
		pool := pgtest.Pool(t, o.Config().ConnString())
		store := pgstore.New(pool, pgstore.Options{Schema: pgtest.Schema, Namespace: "shop"})
		claimed, err := store.Claim(t.Context(), share("a", 10))
		if err != nil || len(claimed.Events) != 4 {
			t.Fatalf("claimed %d events, %v, want 4", len(claimed.Events), err)
		}
		events = claimed.Events
		leases := leasesOf(events)
		for verb, write := range map[string]func() ([]dispatcher.Lease, error){
			"ack":    func() ([]dispatcher.Lease, error) { return store.Ack(t.Context(), leases[:1]) },
			"extend": func() ([]dispatcher.Lease, error) { return store.Extend(t.Context(), leases[1:2], time.Hour) },
			"release": func() ([]dispatcher.Lease, error) {
				return store.Release(t.Context(), []dispatcher.Return{{Lease: leases[2]}})
			},
			"nack": func() ([]dispatcher.Lease, error) {
				return store.Nack(t.Context(), []dispatcher.Failure{{Lease: leases[3], Delay: time.Hour}})
			},
		} {
			if lost, err := write(); err != nil || len(lost) > 0 {
				t.Errorf("%s: lost %v, %v", verb, lost, err)
			}
		}
		depth, err := store.Depth(t.Context(), nil)
		if err != nil || len(depth.Topics) != 1 || depth.Topics[0].Pending.N != 1 || depth.Topics[0].Scheduled.N != 1 {
			t.Errorf("depth is %+v, %v, want 1 pending and 1 scheduled", depth, err)
		}
	})
	to := o.Now()
	between := func(what string, at time.Time, delay time.Duration) {
		if at.Before(from.Add(delay)) || at.After(to.Add(delay)) {
			t.Errorf("%s is %v, want %v after a time between %v and %v", what, at, delay, from, to)
		}
	}
	extended, nacked := o.Row(events[1].ID), o.Row(events[3].ID)
	between("locked_until of the extended", extended.LockedUntil, time.Hour)
	between("next_attempt_at of the nacked", nacked.NextAttemptAt, time.Hour)
	for _, e := range events {
		between("updated_at", o.Row(e.ID).UpdatedAt, 0)
	}
	for _, column := range []string{"created_at", "updated_at", "next_attempt_at", "locked_until"} {
		if n := pgtest.Value[int](o, `select count(*) from outbox.outbox_events where `+column+` < $1`, from.Add(-time.Hour)); n != 0 {
			t.Errorf("%d rows have a %s of the wrong clock", n, column)
		}
	}
}

// The verbs work however pgx sends them, as behind a pooler that keeps no prepared statements, and
// leave nothing behind in the session.
func TestStoreWorksInEachQueryMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, pgtest.Migrated(t))
			o.fill(6, "a")
			config := o.Config()
			config.ConnConfig.DefaultQueryExecMode = mode
			config.MaxConns = 1
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			const settings = `select string_agg(name || '=' || setting, ' ' order by name) from pg_settings
				where name not like 'plpgsql.%'` // which the first function in that language adds
			one := outbox{T: t, Pool: pool, stores: pool}
			before := pgtest.Value[string](one, settings)
			useAll(t, one.Store("shop", uuid.New()))
			one.pastRow(idOf(one.Now(), 1), "shop", "a", 0, 1)
			all, _, _ := one.past(pgstore.Past{Last: 10})
			ids, _, _ := one.past(pgstore.Past{Topics: []string{"a"}, Since: time.Hour, Last: 10})
			if len(all) != 7 || !slices.Equal(ids, []int{1}) {
				t.Errorf("Past: %v, and %v of the last hour; want 7 rows, and row 1", all, ids)
			}
			if after := pgtest.Value[string](one, settings); after != before {
				t.Errorf("the session's settings changed from\n%s\nto\n%s", before, after)
			}
		})
	}
}

// useAll runs every verb on six rows of topic a.
func useAll(t *testing.T, store dispatcher.Store) {
	ctx := t.Context()
	req := share("a", 6)
	req.MaxBytes = 1 << 20
	claimed, err := store.Claim(ctx, req)
	if err != nil || len(claimed.Events) != 6 {
		t.Fatalf("Claim: %d events, %v", len(claimed.Events), err)
	}
	leases := leasesOf(claimed.Events)
	_, err = store.Ack(ctx, leases[:1])
	check(t, "Ack", err)
	_, err = store.Extend(ctx, leases[1:2], time.Hour)
	check(t, "Extend", err)
	_, err = store.Release(ctx, []dispatcher.Return{{Lease: leases[2]}})
	check(t, "Release", err)
	lost, err := store.Nack(ctx, []dispatcher.Failure{
		{Lease: leases[3], Error: "it's \\ \"odd\"", Delay: time.Hour}, {Lease: leases[4], Reason: dispatcher.ReasonPoisonMessage},
		{Lease: dispatcher.Lease{ID: uuid.New(), Number: 1}},
	})
	check(t, "Nack", err)
	if len(lost) != 1 {
		t.Errorf("Nack lost %v, want the row that there is not", lost)
	}
	topics, err := store.Topics(ctx)
	check(t, "Topics", err)
	schema, err := store.Schema(ctx)
	check(t, "Schema", err)
	depth, err := store.Depth(ctx, nil)
	check(t, "Depth", err)
	one := dispatcher.Count{N: 1}
	d := depth.Topics[0]
	if !slices.Equal(topics, []string{"a"}) || schema.State != dispatcher.SchemaReady ||
		d.Pending != one || d.Scheduled != one || d.Processing.N != 2 || d.Dead != one {
		t.Errorf("topics %v, schema %+v, depth %+v", topics, schema, d)
	}
}

func check(t *testing.T, verb string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", verb, err)
	}
}
