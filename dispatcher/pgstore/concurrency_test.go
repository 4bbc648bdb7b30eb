package pgstore_test

import (
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
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

// inOrder is share in order per key.
func inOrder(topic string, limit, perKey int) dispatcher.ClaimRequest {
	req := share(topic, limit)
	req.Keys = &dispatcher.KeyOrder{PerKey: perKey}
	return req
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

// Several workers drain a topic: no row goes to two of them, none is left, and no write-back is refused.
// CONTRACT: C-20
// REQUIREMENT: STORAGE-30, cpt-cf-mini-chat-algo-usage-outbox-claim
func TestWorkersClaimEachRowOnce(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	drain(t, o, nil)
	pgtest.Want(o, 0, "%d rows are not delivered at the first attempt", `select count(*) from outbox.outbox_events where status <> 'delivered' or attempts <> 1`)
}

// One worker's verbs run at the same time on the same rows, in any order, and never wait for each
// other in a circle.
func TestVerbsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fill(300, "a")
	store := o.Store("shop", uuid.New())
	claimed, err := store.Claim(t.Context(), share("a", 300))
	need.OK(t, err)
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
	need.OK(t, group.Wait())
}

// A worker whose clock is off by a quarter of a century does what any other does. Inside a synctest
// bubble Go's clock says the year 2000.
// CONTRACT: C-3
func TestWrongClockOfAWorkerChangesNothing(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fill(4, "a")
	from := o.Now()
	var events []*dispatcher.Event
	synctest.Test(t, func(t *testing.T) {
		year := time.Now().Year()
		need.Must(t, year == 2000, "the clock says %d", year)
		pool := pgtest.Pool(t, o.Config().ConnString())
		store := pgstore.New(pool, pgstore.Options{Schema: pgtest.Schema, Namespace: "shop"})
		claimed, err := store.Claim(t.Context(), share("a", 10))
		need.Must(t, err == nil && len(claimed.Events) == 4, "claimed %d events, %v, want 4", len(claimed.Events), err)
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
		need.That(t, err == nil && len(depth.Topics) == 1 && depth.Topics[0].Pending.N == 2 && depth.Topics[0].Retrying.N == 1,
			"depth is %+v, %v, want 2 pending, of which 1 waits for a retry", depth, err)
	})
	to := o.Now()
	between := func(what string, at time.Time, delay time.Duration) {
		need.That(t, !at.Before(from.Add(delay)) && !at.After(to.Add(delay)), "%s is %v, want %v after a time between %v and %v", what, at, delay, from, to)
	}
	extended, nacked := o.Row(events[1].ID), o.Row(events[3].ID)
	between("locked_until of the extended", extended.LockedUntil, time.Hour)
	between("next_attempt_at of the nacked", nacked.NextAttemptAt, time.Hour)
	for _, e := range events {
		between("updated_at", o.Row(e.ID).UpdatedAt, 0)
	}
	for _, column := range []string{"created_at", "updated_at", "next_attempt_at", "locked_until"} {
		n := pgtest.Value[int](o, `select count(*) from outbox.outbox_events where `+column+` < $1`, from.Add(-time.Hour))
		need.That(t, n == 0, "%d rows have a %s of the wrong clock", n, column)
	}
}

// The verbs work however pgx sends them, as behind a pooler that keeps no prepared statements, and
// leave nothing behind in the session.
func TestStoreWorksInEachQueryMode(t *testing.T) {
	t.Parallel()
	pgtest.EachMode(t, func(t *testing.T, mode pgtest.Mode) {
		t.Parallel()
		o := newOutbox(t, pgtest.Migrated(t))
		o.fill(6, "a")
		config, err := pgxpool.ParseConfig(mode.In(o.Config().ConnString()))
		check(t, "ParseConfig", err)
		config.MaxConns = 1
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		check(t, "NewWithConfig", err)
		t.Cleanup(pool.Close)
		const settings = `select string_agg(name || '=' || setting, ' ' order by name) from pg_settings
				where name not like 'plpgsql.%'` // which the first function in that language adds
		one := outbox{T: t, Pool: pool, stores: pool}
		before := pgtest.Value[string](one, settings)
		useAll(t, one.Store("shop", uuid.New()))
		one.pastRow(idOf(one.Now(), 1), "shop", "a", 0, 1)
		all, _, _ := one.past(pgstore.Past{Last: 10})
		ids, _, _ := one.past(pgstore.Past{Topics: []string{"a"}, Since: time.Hour, Last: 10})
		need.That(t, len(all) == 7 && slices.Equal(ids, []int{1}), "Past: %v, and %v of the last hour; want 7 rows, and row 1", all, ids)
		need.Want(t, before, "the session's settings changed from\n%s\nto\n%s", pgtest.Value[string](one, settings), before)
	})
}

// useAll runs every verb on six rows of topic a.
func useAll(t *testing.T, store dispatcher.Store) {
	ctx := t.Context()
	req := share("a", 6)
	req.MaxBytes = 1 << 20
	claimed, err := store.Claim(ctx, req)
	need.Must(t, err == nil && len(claimed.Events) == 6, "Claim: %d events, %v", len(claimed.Events), err)
	leases := leasesOf(claimed.Events)
	_, err = store.Ack(ctx, leases[:1])
	check(t, "Ack", err)
	_, err = store.Extend(ctx, leases[1:2], time.Hour)
	check(t, "Extend", err)
	_, err = store.Begin(ctx, leases[1:2])
	check(t, "Begin", err)
	_, err = store.Release(ctx, []dispatcher.Return{{Lease: leases[2]}})
	check(t, "Release", err)
	lost, err := store.Nack(ctx, []dispatcher.Failure{
		{Lease: leases[3], Error: "it's \\ \"odd\"", Delay: time.Hour}, {Lease: leases[4], Reason: dispatcher.ReasonPoisonMessage},
		{Lease: dispatcher.Lease{ID: uuid.New(), Number: 1}},
	})
	check(t, "Nack", err)
	need.That(t, len(lost) == 1, "Nack lost %v, want the row that there is not", lost)
	topics, err := store.Topics(ctx)
	check(t, "Topics", err)
	schema, err := store.Schema(ctx)
	check(t, "Schema", err)
	depth, err := store.Depth(ctx, nil)
	check(t, "Depth", err)
	one := dispatcher.Count{N: 1}
	d := depth.Topics[0]
	need.That(t, slices.Equal(topics, []string{"a"}) && schema.State == dispatcher.SchemaReady && d.Pending.N == 2 && d.Retrying == one && d.Processing.N == 2 && d.Dead == one,
		"topics %v, schema %+v, depth %+v", topics, schema, d)
	req.Keys = &dispatcher.KeyOrder{PerKey: 2, BlockOnDead: true}
	claimed, err = store.Claim(ctx, req)
	check(t, "Claim in order per key", err)
	need.That(t, len(claimed.Events) == 1 && claimed.Events[0].ID == leases[2].ID, "claimed %d events in order per key, want the one that was released", len(claimed.Events))
}

func check(t *testing.T, verb string, err error) {
	t.Helper()
	need.Must(t, err == nil, "%s: %v", verb, err)
}

// beat is one heartbeat of a store's worker.
func beat(t *testing.T, store dispatcher.Store, info pgstore.WorkerInfo) pgstore.Peers {
	t.Helper()
	seen, err := store.(*pgstore.Store).Heartbeat(t.Context(), info)
	check(t, "Heartbeat", err)
	return seen
}

// A worker with a dispatcher's rights has one row while it runs, with the database's times. Rows that were not
// seen for a day go, and those of others stay.
// CONTRACT: C-3
func TestHeartbeatWritesOneRowPerWorker(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.stores = pgtest.Pool(t, o.login(migrations.Dispatcher))
	one, other, lost, old := uuid.New(), uuid.New(), uuid.New(), uuid.New()
	beat := func(worker uuid.UUID, info pgstore.WorkerInfo) { beat(t, o.Store("shop", worker), info) }
	beat(other, pgstore.WorkerInfo{Dispatcher: "others"})
	for worker, ago := range map[uuid.UUID]time.Duration{lost: 23 * time.Hour, old: 25 * time.Hour} {
		pgtest.Exec(o, `insert into outbox.outbox_workers (worker, dispatcher, namespace, started_at, seen_at) values ($1, 'gone', 'shop', now() - $2::interval, now() - $2::interval)`, worker, ago)
	}
	from := o.Now()
	beat(one, pgstore.WorkerInfo{Dispatcher: "orders", Version: "v1", Topics: []string{"orders", "returns"}})
	first := o.Now()
	const row = `select concat_ws(' ', dispatcher, namespace, topics, version) from outbox.outbox_workers where worker = $1`
	pgtest.Want(o, "orders shop {orders,returns} v1", "the row is %q", row, one)
	pgtest.Want(o, "others shop {} ", "the other worker's row is %q", row, other)
	beat(one, pgstore.WorkerInfo{Dispatcher: "orders", Version: "v1", Ordered: true, Blocks: true})
	if !pgtest.Value[bool](o, `select started_at between $2 and $3 and seen_at > $3 and topics = '{}' and ordered and blocks from outbox.outbox_workers where worker = $1`, one, from, first) {
		t.Errorf("after the second time the row is %s", pgtest.Value[string](o, `select w::text from outbox.outbox_workers as w where worker = $1`, one))
	}
	n := pgtest.Value[int](o, `select count(*) from outbox.outbox_workers where worker = any ($1)`, []uuid.UUID{one, other, lost})
	need.That(t, n == 3 && pgtest.Value[int](o, `select count(*) from outbox.outbox_workers`) == 3, "%d of the 3 rows that must stay are there", n)

	pgtest.Exec(o, `update outbox.outbox_workers set seen_at = now() - interval '2 days' where worker = $1`, one) // it was frozen
	beat(one, pgstore.WorkerInfo{Dispatcher: "orders"})
	check(t, "Leave", o.Store("shop", one).(*pgstore.Store).Leave(t.Context()))
	pgtest.Want[int](o, 0, "the row is there after Leave", `select count(*) from outbox.outbox_workers where worker = $1`, one)
	pgtest.Want(o, 2, "Leave left %d rows, want 2", `select count(*) from outbox.outbox_workers`)
}

// Dispatchers that deliver topics of this one are named, whoever runs them; each once, and only while they run
// and are not paused.
// CONTRACT: C-104
func TestSharingNamesRunningDispatchersOfTheTopics(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.stores = pgtest.Pool(t, o.login(migrations.Dispatcher))
	beatOf := beat
	beat := func(namespace, name string, topics ...string) {
		beatOf(t, o.Store(namespace, uuid.New()), pgstore.WorkerInfo{Dispatcher: name, Topics: topics})
	}
	beat("shop", "eu/orders", "orders", "returns")
	beat("shop", "eu/orders", "orders", "returns")
	beat("shop", "eu/returns", "returns")
	beat("shop", "us/all")
	beat("other", "eu/other")
	beatOf(t, o.Store("shop", uuid.New()), pgstore.WorkerInfo{Dispatcher: "eu/standby", Paused: true})
	beat("shop", "eu/gone", "orders")
	pgtest.Exec(o, `update outbox.outbox_workers set seen_at = now() - interval '2 minutes' where dispatcher = 'eu/gone'`)
	for _, c := range []struct {
		name   string
		topics []string
		want   []string
	}{
		{"eu/orders", []string{"orders", "returns"}, []string{"eu/returns", "us/all"}},
		{"eu/returns", []string{"returns"}, []string{"eu/orders", "us/all"}},
		{"us/all", nil, []string{"eu/orders", "eu/returns"}},
		{"eu/stock", []string{"stock"}, []string{"us/all"}},
	} {
		got, err := o.Store("shop", uuid.New()).(*pgstore.Store).Sharing(t.Context(), pgstore.WorkerInfo{Dispatcher: c.name, Topics: c.topics})
		need.That(t, err == nil && slices.Equal(got, c.want), "%s shares %v with %v, %v; want %v", c.name, c.topics, got, err, c.want)
	}
}

// The parts of a rate never have a sum above 1: a new worker waits until the others were seen again, the part of one that
// stops is free at once, and that of a lost one when it is not live any more. Paused workers and those of other dispatchers
// have none.
//
// CONTRACT: C-36
func TestHeartbeatsDivideTheRate(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	third := uuid.New()
	a, b, c, paused := o.Store("shop", uuid.New()), o.Store("shop", uuid.New()), o.Store("shop", third), o.Store("shop", uuid.New())
	orders := pgstore.WorkerInfo{Dispatcher: "orders", Live: time.Hour}
	step := func(what string, store dispatcher.Store, live int, part float64) {
		t.Helper()
		got := beat(t, store, orders)
		need.That(t, got.Live == live && math.Abs(got.Part-part) <= 1e-9, "%s: %+v, want part %v of %d", what, got, part, live)
		sum := pgtest.Value[float64](o, `select sum(part) from outbox.outbox_workers where dispatcher = 'orders' and live_until > now() and seen_at < now() + interval '1 minute'`)
		need.That(t, sum <= 1+1e-9, "%s: the parts have the sum %v", what, sum)
	}
	beat(t, o.Store("shop", uuid.New()), pgstore.WorkerInfo{Dispatcher: "others"})
	beat(t, o.Store("other", uuid.New()), orders)
	step("the first, when it is new", a, 1, 0)
	step("the first", a, 1, 1)
	step("the second, when it is new", b, 2, 0)
	step("the second, before the first was seen", b, 2, 0)
	step("the first of two", a, 2, 0.5)
	step("the second of two", b, 2, 0.5)
	orders.Paused = true
	step("a paused one", paused, 2, 0)
	step("a paused one, again", paused, 2, 0)
	orders.Paused = false
	step("the third, when it is new", c, 3, 0)
	step("the first of three", a, 3, 1.0/3)
	step("the third, with what is left", c, 3, 1-0.5-1.0/3)
	step("the second of three", b, 3, 1.0/3)
	step("the third of three", c, 3, 1.0/3)
	pgtest.Exec(o, `update outbox.outbox_workers set live_until = now() - interval '1 second' where worker = $1`, third)
	step("the first of two that are left", a, 2, 0.5)
	step("the second of two that are left", b, 2, 0.5)
	step("the lost one, when it is seen again", c, 3, 0)
	check(t, "Leave", b.(*pgstore.Store).Leave(t.Context()))
	step("the lost one, when the second has stopped", c, 2, 0.5)
	pgtest.Exec(o, `update outbox.outbox_workers set seen_at = seen_at + interval '1 hour' where worker = $1`, third)
	step("the first, next to one that was seen by a clock that was ahead", a, 1, 1)
}

// A heartbeat waits for one that is under way, and sees the part that it takes.
//
// CONTRACT: C-36
func TestHeartbeatsTakeAPartOnce(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	first := uuid.New()
	a, b := o.Store("shop", first), o.Store("shop", uuid.New())
	orders := pgstore.WorkerInfo{Dispatcher: "orders", Live: time.Hour}
	beat(t, a, orders)
	beat(t, b, orders)
	tx, err := o.Begin(t.Context())
	check(t, "begin", err)
	_, err = tx.Exec(t.Context(), `update outbox.outbox_workers set part = 0.75 where worker = $1`, first)
	check(t, "take a part", err)
	part := make(chan float64, 1)
	go func() {
		seen, _ := b.(*pgstore.Store).Heartbeat(t.Context(), orders)
		part <- seen.Part
	}()
	pgtest.Eventually(t, "the heartbeat waits", func() bool {
		return len(part) > 0 || pgtest.Value[int](o, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) > 0
	})
	check(t, "commit", tx.Commit(t.Context()))
	need.Want(t, 0.25, "the part is %v, want what is left, 0.25", <-part)
}

// A worker uses its part until it has the response of a heartbeat, which may be lost after the commit: no other gets that part
// before, also when the worker is paused then.
//
// CONTRACT: C-36
func TestHeartbeatsWhoseResponsesAreLost(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	stores := []dispatcher.Store{o.Store("shop", uuid.New()), o.Store("shop", uuid.New())}
	uses := []float64{0, 0}
	for _, step := range []struct {
		what         string
		worker       int
		paused, lost bool
		uses         float64
	}{
		{"the first, when it is new", 0, false, false, 0},
		{"the first", 0, false, false, 1},
		{"the second, when it is new", 1, false, false, 0},
		{"the first, whose response is lost", 0, false, true, 1},
		{"the second, while the first uses all", 1, false, false, 0},
		{"the first, whose response is lost again", 0, false, true, 1},
		{"the first, when it gives up a half", 0, false, false, 0.5},
		{"the second, before the first was seen again", 1, false, false, 0},
		{"the first of two", 0, false, false, 0.5},
		{"the second of two", 1, false, false, 0.5},
		{"the first, paused, whose response is lost", 0, true, true, 0.5},
		{"the second, while the first uses its half", 1, false, false, 0.5},
		{"the first, paused", 0, true, false, 0},
		{"the first, paused, again", 0, true, false, 0},
		{"the second, alone", 1, false, false, 1},
	} {
		got := beat(t, stores[step.worker], pgstore.WorkerInfo{Dispatcher: "orders", Live: time.Hour, Paused: step.paused, RatePart: uses[step.worker]})
		if !step.lost {
			uses[step.worker] = got.Part
		}
		need.That(t, uses[step.worker] == step.uses && uses[0]+uses[1] <= 1, "%s: the two use %v, want %v of it", step.what, uses, step.uses)
	}
}
