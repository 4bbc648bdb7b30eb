package pgstore_test

import (
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

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
	if got := pgtest.Value[string](o, row, one); got != "orders shop {orders,returns} v1" {
		t.Errorf("the row is %q", got)
	}
	if got := pgtest.Value[string](o, row, other); got != "others shop {} " {
		t.Errorf("the other worker's row is %q", got)
	}
	beat(one, pgstore.WorkerInfo{Dispatcher: "orders", Version: "v1", Ordered: true, Blocks: true})
	if !pgtest.Value[bool](o, `select started_at between $2 and $3 and seen_at > $3 and topics = '{}' and ordered and blocks from outbox.outbox_workers where worker = $1`, one, from, first) {
		t.Errorf("after the second time the row is %s", pgtest.Value[string](o, `select w::text from outbox.outbox_workers as w where worker = $1`, one))
	}
	if n := pgtest.Value[int](o, `select count(*) from outbox.outbox_workers where worker = any ($1)`, []uuid.UUID{one, other, lost}); n != 3 || pgtest.Value[int](o, `select count(*) from outbox.outbox_workers`) != 3 {
		t.Errorf("%d of the 3 rows that must stay are there", n)
	}

	pgtest.Exec(o, `update outbox.outbox_workers set seen_at = now() - interval '2 days' where worker = $1`, one) // it was frozen
	beat(one, pgstore.WorkerInfo{Dispatcher: "orders"})
	check(t, "Leave", o.Store("shop", one).(*pgstore.Store).Leave(t.Context()))
	if n := pgtest.Value[int](o, `select count(*) from outbox.outbox_workers where worker = $1`, one); n != 0 {
		t.Error("the row is there after Leave")
	}
	if n := pgtest.Value[int](o, `select count(*) from outbox.outbox_workers`); n != 2 {
		t.Errorf("Leave left %d rows, want 2", n)
	}
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
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s shares %v with %v, %v; want %v", c.name, c.topics, got, err, c.want)
		}
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
		if got := beat(t, store, orders); got.Live != live || math.Abs(got.Part-part) > 1e-9 {
			t.Errorf("%s: %+v, want part %v of %d", what, got, part, live)
		}
		if sum := pgtest.Value[float64](o, `select sum(part) from outbox.outbox_workers where dispatcher = 'orders' and live_until > now()`); sum > 1+1e-9 {
			t.Errorf("%s: the parts have the sum %v", what, sum)
		}
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
	pgtest.Eventually(t, "the heartbeat waits", time.Minute, func() bool {
		return len(part) > 0 || pgtest.Value[int](o, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) > 0
	})
	check(t, "commit", tx.Commit(t.Context()))
	if got := <-part; got != 0.25 {
		t.Errorf("the part is %v, want what is left, 0.25", got)
	}
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
		if uses[step.worker] != step.uses || uses[0]+uses[1] > 1 {
			t.Errorf("%s: the two use %v, want %v of it", step.what, uses, step.uses)
		}
	}
}

// A worker sees the plan that the oldest live worker of its dispatcher has of each topic, unless it is that one.
//
// CONTRACT: C-38
func TestHeartbeatsPassOnPlans(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.stores = pgtest.Pool(t, o.login(migrations.Dispatcher))
	old, young := uuid.New(), uuid.New()
	a, b, c, other := o.Store("shop", old), o.Store("shop", young), o.Store("shop", uuid.New()), o.Store("shop", uuid.New())
	plans := func(calls ...int) pgstore.WorkerInfo {
		w := pgstore.WorkerInfo{Dispatcher: "orders", Plans: map[string]dispatcher.Plan{}}
		for i, n := range calls {
			if n > 0 {
				w.Plans[[]string{"orders", "returns"}[i]] = dispatcher.Plan{Calls: n, Found: n > 9}
			}
		}
		return w
	}
	step := func(what string, store dispatcher.Store, info pgstore.WorkerInfo, orders, returns int) {
		t.Helper()
		got := beat(t, store, info).Plans
		want := plans(orders, returns).Plans
		if !maps.Equal(got, want) {
			t.Errorf("%s sees %v, want %v", what, got, want)
		}
	}
	beat(t, other, pgstore.WorkerInfo{Dispatcher: "others", Plans: map[string]dispatcher.Plan{"orders": {Calls: 99}}})
	step("the first", a, plans(20), 0, 0)
	step("the second", b, plans(4, 5), 20, 0)
	step("the third", c, plans(7, 8), 20, 5)
	step("the third, again", c, plans(7, 8), 20, 5)
	step("the first, again", a, plans(21), 0, 0)
	step("the second, again", b, plans(4, 5), 21, 0)
	pgtest.Exec(o, `update outbox.outbox_workers set live_until = now() - interval '1 second' where worker = $1`, old)
	step("the third, when the first is lost,", c, plans(7, 8), 4, 5)
	paused := plans(4, 5)
	paused.Paused = true
	beat(t, b, paused)
	step("the third, when the second is paused,", c, plans(7, 8), 0, 0)
}
