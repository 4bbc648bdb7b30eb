package pgstore_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// data looks at the data as a worker of the dispatcher orders, for topics.
func (o outbox) data(topics ...string) dispatcher.Data {
	o.Helper()
	data, err := o.Store("shop", uuid.New()).(*pgstore.Store).Data(o.Context(), pgstore.WorkerInfo{Dispatcher: "orders", Topics: topics})
	if err != nil {
		o.Fatal(err)
	}
	return data
}

// serve notes a worker that was seen so long ago.
func (o outbox) serve(ago time.Duration, namespace string, topics ...string) uuid.UUID {
	o.Helper()
	worker := uuid.New()
	beat(o.T, o.Store(namespace, worker), pgstore.WorkerInfo{Dispatcher: "orders", Topics: topics})
	pgtest.Exec(o, `update outbox.outbox_workers set seen_at = now() - $2::interval where worker = $1`, worker, ago)
	return worker
}

// add adds rows of a topic that have been due so long. A lease that ends after that time makes them processing.
func (o outbox) add(n int, namespace, topic string, due time.Duration, worker uuid.UUID, lease time.Duration) {
	o.Helper()
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload, next_attempt_at, status, locked_by, locked_until)
		select gen_random_uuid(), $2, $3, '{}', now() - $4::interval, case when $5::uuid is null then 'pending' else 'processing' end, $5::uuid,
			case when $5::uuid is not null then now() + $6::interval end
		from generate_series(1, $1::integer)`, n, namespace, topic, due, nullable(worker), lease)
}

func nullable(id uuid.UUID) *string {
	if id == uuid.Nil {
		return nil
	}
	text := id.String()
	return &text
}

// Rows that no worker serves are found in all namespaces, with a dispatcher's rights; rows that a worker serves, or
// is about to, are not.
// CONTRACT: C-95
// REQUIREMENT: STORAGE-70
func TestOrphansAreDueRowsThatNoWorkerServes(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.stores = pgtest.Pool(t, o.login(migrations.Dispatcher))
	runs, all := o.serve(0, "shop", "orders", "returns"), o.serve(0, "bank")
	stopped := o.serve(2*time.Minute, "shop", "refunds")
	const long = time.Hour
	none := uuid.Nil
	o.add(4, "shop", "orders", long, none, 0)       // served
	o.add(4, "bank", "anything", long, none, 0)     // served with all topics
	o.add(4, "shop", "fresh", time.Second, none, 0) // due for a moment
	o.add(4, "shop", "later", -long, none, 0)
	o.add(4, "shop", "orders", long, runs, long)                  // held
	o.add(4, "shop", "returns", long, runs, -30*time.Second)      // the lease has just ended
	o.add(4, "bank", "anything", long, all, -30*time.Second)      //
	o.add(2, "shop", "foreign", long, uuid.New(), 30*time.Second) // a worker in another language has some
	o.add(4, "shop", "foreign", long, none, 0)

	if got := o.data().Orphans; got.Unserved.N != 0 || got.Abandoned.N != 0 || len(got.Topics) != 0 {
		t.Errorf("where a worker serves each row, it finds %+v", got)
	}
	o.add(3, "shop", "refunds", long, none, 0)                     // its worker is gone
	o.add(2, "Shop", "orders", long, none, 0)                      // a misspelt namespace
	o.add(1, "shop", "orders", long, stopped, long)                // leased to one that is gone
	o.add(5, "shop", "returns", long, uuid.New(), -2*time.Minute)  // taken over by no worker
	o.add(1, "shop", "foreign", long, uuid.New(), -61*time.Second) //
	want := dispatcher.Orphans{Unserved: dispatcher.Count{N: 5}, Abandoned: dispatcher.Count{N: 7}, Topics: []dispatcher.OrphanTopic{
		{Namespace: "shop", Topic: "foreign", Abandoned: dispatcher.Count{N: 1}},
		{Namespace: "shop", Topic: "orders", Abandoned: dispatcher.Count{N: 1}},
		{Namespace: "shop", Topic: "refunds", Unserved: dispatcher.Count{N: 3}},
		{Namespace: "shop", Topic: "returns", Abandoned: dispatcher.Count{N: 5}},
		{Namespace: "Shop", Topic: "orders", Unserved: dispatcher.Count{N: 2}},
	}}
	from := o.Now()
	got := o.data()
	if fmt.Sprint(got.Orphans) != fmt.Sprint(want) {
		t.Errorf("it finds %+v, want %+v", got.Orphans, want)
	}
	if got.ObservedAt.Before(from) || got.ObservedAt.After(o.Now()) {
		t.Errorf("it looked at %s", got.ObservedAt)
	}
}

// What a dispatcher's processes that run say is added up, and the dead events of its topics are counted by their times. An
// event that is gone does not count as delivered.
// CONTRACT: C-95
// REQUIREMENT: STORAGE-69, STORAGE-72
func TestOutcomesAddUpRunningProcesses(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.stores = pgtest.Pool(t, o.login(migrations.Dispatcher))
	say := func(namespace, name string, delivered, failed [2]int64) uuid.UUID {
		worker := uuid.New()
		beat(t, o.Store(namespace, worker), pgstore.WorkerInfo{Dispatcher: name, Delivered: delivered, Failed: failed})
		return worker
	}
	say("shop", "orders", [2]int64{9, 9}, [2]int64{9, 9})
	say("shop", "others", [2]int64{100, 100}, [2]int64{100, 100})
	say("bank", "orders", [2]int64{100, 100}, [2]int64{100, 100})
	stopped := say("shop", "orders", [2]int64{100, 100}, [2]int64{100, 100})
	pgtest.Exec(o, `update outbox.outbox_workers set seen_at = now() - interval '2 minutes' where worker = $1`, stopped)
	again := say("shop", "orders", [2]int64{0, 0}, [2]int64{0, 0})
	beat(t, o.Store("shop", again), pgstore.WorkerInfo{Dispatcher: "orders", Delivered: [2]int64{21, 91}, Failed: [2]int64{1, 11}})
	o.add(5, "shop", "orders", time.Hour, uuid.Nil, 0)
	pgtest.Exec(o, `delete from outbox.outbox_events`)
	becomeDead := func(n int, namespace, topic string, ago time.Duration) {
		pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts, dead_at)
			select gen_random_uuid(), $2, $3, 'poison_message', 1, now() - $4::interval from generate_series(1, $1::integer)`, n, namespace, topic, ago)
	}
	becomeDead(2, "shop", "orders", 0)
	becomeDead(3, "shop", "orders", 6*time.Minute)
	becomeDead(4, "shop", "orders", 61*time.Minute)
	becomeDead(7, "shop", "returns", 0)
	becomeDead(7, "bank", "orders", 0)
	pgtest.Exec(o, `update outbox.outbox_dead_letters set resolution = 'replayed', resolved_at = now(), resolved_by = 'me' where topic = 'orders'`)

	want := []dispatcher.Outcomes{
		{Window: 5 * time.Minute, Delivered: 30, Failed: 10, Dead: dispatcher.Count{N: 2}},
		{Window: time.Hour, Delivered: 100, Failed: 20, Dead: dispatcher.Count{N: 5}},
	}
	if got := o.data("orders").Windows; !slices.Equal(got, want) {
		t.Errorf("the outcomes are %+v, want %+v", got, want)
	}
	if got := o.data().Windows[1].Dead; got.N != 12 {
		t.Errorf("%d events of all topics became dead in the last hour, want 12", got.N)
	}
	if rate, known := want[0].SuccessRate(); !known || rate != 0.75 || want[0].Name() != "5m" || want[1].Name() != "1h" {
		t.Errorf("the rate of %s is %v, %t", want[0].Name(), rate, known)
	}
	if _, known := (dispatcher.Outcomes{}).SuccessRate(); known {
		t.Error("there is a rate without attempts")
	}
}

// Both queries read a bounded number of rows by indexes, whatever waits and whatever is dead, with statistics of an empty
// table and with fresh ones. What runs into a bound says so. The counts are rows and pages, so that they hold on
// any machine.
// CONTRACT: C-95, C-96
// REQUIREMENT: STORAGE-20
func TestDataPlans(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	p := newPlanned(t, pgtest.Migrated(t))
	orphans, outcomes := pgstore.DataSQL()
	pgtest.Exec(p, `alter table outbox.outbox_dead_letters set (autovacuum_enabled = off)`)
	pgtest.Exec(p, `prepare orphans as `+orphans)
	pgtest.Exec(p, `prepare outcomes as `+outcomes)
	const rows = 100_000
	p.add(rows, "shop", "orders", time.Hour, uuid.Nil, 0)
	pgtest.Exec(p, `insert into outbox.outbox_events (id, namespace, topic, payload, next_attempt_at)
		select gen_random_uuid(), 'shop', 'topic-' || n % 300, '{}', now() - interval '1 hour' from generate_series(1, 60000) as n`)
	pgtest.Exec(p, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts, dead_at)
		select gen_random_uuid(), 'shop', 'topic-' || n % 300, 'poison_message', 1, now() - n * interval '1 second' from generate_series(1, $1::integer) as n`, rows)
	for _, statistics := range []string{"none", "fresh"} {
		if statistics == "fresh" {
			pgtest.Exec(p, `analyze`)
			pgtest.Exec(p, `discard plans`)
		}
		for name, c := range map[string]struct {
			sql     string
			index   string
			buffers int
		}{
			// A hundred rows of each of 301 topics, and four pages to find each topic.
			"orphans": {"execute orphans (1000, 20000)", "outbox_events_live", 45_000},
			// The 3,600 dead letters of the last hour.
			"outcomes": {"execute outcomes ('shop', 'orders', '{topic-1}', 10000)", "outbox_dead_letters_dead_at", 4_000},
		} {
			got := p.explain(c.sql)
			t.Logf("%s with %s statistics: %d buffers", name, statistics, got.buffers())
			if got.buffers() > c.buffers {
				t.Errorf("%s with %s statistics: %d buffers, want %d at most", name, statistics, got.buffers(), c.buffers)
			}
			if !got.indexes()[c.index] || got.has("Sort") && name == "outcomes" {
				t.Errorf("%s with %s statistics uses %v", name, statistics, got.indexes())
			}
		}
	}
	got := p.data("topic-1")
	if o := got.Orphans; o.Unserved.N < 20_000 || o.Unserved.N > 60_000 || !o.Unserved.Estimated || len(o.Topics) != dispatcher.OrphanTopicsListed {
		t.Errorf("%d orphans, estimated %t, in %d topics that are listed", o.Unserved.N, o.Unserved.Estimated, len(o.Topics))
	}
	if d := got.Windows[1].Dead; d.Estimated || d.N < 11 || d.N > 13 {
		t.Errorf("%+v became dead, want the 12 of 3,600", d)
	}
	pgtest.Exec(p, `update outbox.outbox_dead_letters set dead_at = now() where id <= 20000`)
	if d := p.data().Windows[0].Dead; !d.Estimated || d.N != dispatcher.DepthCap+1 {
		t.Errorf("%+v of 20,000 dead letters", d)
	}
}
