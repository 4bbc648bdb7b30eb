package pgstore_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// A worker with a dispatcher's rights has one row while it runs, with the database's times. Rows that were not
// seen for a day go, and those of others stay.
// CONTRACT: C-3
func TestHeartbeatWritesOneRowPerWorker(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.stores = pgtest.Pool(t, o.login(migrations.Dispatcher))
	one, other, lost, old := uuid.New(), uuid.New(), uuid.New(), uuid.New()
	beat := func(worker uuid.UUID, info pgstore.WorkerInfo) {
		t.Helper()
		check(t, "Heartbeat", o.Store("shop", worker).(*pgstore.Store).Heartbeat(t.Context(), info))
	}
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
	beat(one, pgstore.WorkerInfo{Dispatcher: "orders", Version: "v1", Blocks: true})
	if !pgtest.Value[bool](o, `select started_at between $2 and $3 and seen_at > $3 and topics = '{}' and blocks from outbox.outbox_workers where worker = $1`, one, from, first) {
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
	beat := func(namespace, name string, topics ...string) {
		t.Helper()
		check(t, "Heartbeat", o.Store(namespace, uuid.New()).(*pgstore.Store).Heartbeat(t.Context(), pgstore.WorkerInfo{Dispatcher: name, Topics: topics}))
	}
	beat("shop", "eu/orders", "orders", "returns")
	beat("shop", "eu/orders", "orders", "returns")
	beat("shop", "eu/returns", "returns")
	beat("shop", "us/all")
	beat("other", "eu/other")
	check(t, "Heartbeat", o.Store("shop", uuid.New()).(*pgstore.Store).Heartbeat(t.Context(), pgstore.WorkerInfo{Dispatcher: "eu/standby", Paused: true}))
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
