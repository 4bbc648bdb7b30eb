package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// data looks at the data as a worker of the dispatcher orders, for topics.
func (o outbox) data(topics ...string) dispatcher.Data {
	o.Helper()
	data, err := o.Store("shop", uuid.New()).(*pgstore.Store).Data(o.Context(), pgstore.WorkerInfo{Dispatcher: "orders", Topics: topics})
	need.OK(o, err)
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
	need.That(t, fmt.Sprint(got.Orphans) == fmt.Sprint(want), "it finds %+v, want %+v", got.Orphans, want)
	need.That(t, !got.ObservedAt.Before(from) && !got.ObservedAt.After(o.Now()), "it looked at %s", got.ObservedAt)
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
	need.WantAll(t, want, "the outcomes are %+v, want %+v", o.data("orders").Windows)
	got := o.data().Windows[1].Dead
	need.Want(t, 12, "%d events of all topics became dead in the last hour, want 12", got.N)
	if rate, known := want[0].SuccessRate(); !known || rate != 0.75 || want[0].Name() != "5m" || want[1].Name() != "1h" {
		t.Errorf("the rate of %s is %v, %t", want[0].Name(), rate, known)
	}
	_, known := (dispatcher.Outcomes{}).SuccessRate()
	need.That(t, !known, "there is a rate without attempts")
}

// Both queries read a bounded number of rows by indexes, whatever waits and whatever is dead, with statistics of an empty
// table and with fresh ones. What runs into a bound says so. The counts are rows and pages, so that they hold on
// any machine.
// CONTRACT: C-95, C-96
// REQUIREMENT: STORAGE-20
func TestDataPlansAreBounded(t *testing.T) {
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
			need.That(t, got.buffers() <= c.buffers, "%s with %s statistics: %d buffers, want %d at most", name, statistics, got.buffers(), c.buffers)
			need.That(t, got.indexes()[c.index] && (!got.has("Sort") || name != "outcomes"), "%s with %s statistics uses %v", name, statistics, got.indexes())
		}
	}
	got := p.data("topic-1")
	if o := got.Orphans; o.Unserved.N < 20_000 || o.Unserved.N > 60_000 || !o.Unserved.Estimated || len(o.Topics) != dispatcher.OrphanTopicsListed {
		t.Errorf("%d orphans, estimated %t, in %d topics that are listed", o.Unserved.N, o.Unserved.Estimated, len(o.Topics))
	}
	d := got.Windows[1].Dead
	need.That(t, !d.Estimated && d.N >= 11 && d.N <= 13, "%+v became dead, want the 12 of 3,600", d)
	pgtest.Exec(p, `update outbox.outbox_dead_letters set dead_at = now() where id <= 20000`)
	d = p.data().Windows[0].Dead
	need.That(t, d.Estimated && d.N == dispatcher.DepthCap+1, "%+v of 20,000 dead letters", d)
}

// Rows with times that an adoption may bring harm themselves alone: those that are due are claimed, in whatever way
// claims begin, the backlog is counted, and each is named.
// CONTRACT: C-33, C-95, C-96
func TestOddTimesHarmTheirRowsAlone(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.stores = pgtest.Pool(t, o.Config().ConnString()+"&timezone=Europe/Berlin") // its offset had seconds in the year 1
	add := func(seq int, due, created string) {
		pgtest.Exec(o, fmt.Sprintf(`insert into outbox.outbox_events (id, namespace, topic, payload, next_attempt_at, created_at)
			values ('01900000-0000-7000-8000-%012d', 'shop', 'orders', '{}', %s, %s)`, seq, due, created))
	}
	add(1, "'-infinity'", "now()")
	add(2, "'4713-01-01 BC'", "now()")
	add(3, "now()", "'-infinity'")
	add(4, "now()", "'infinity'")
	add(5, "now()", "'294276-01-01'")
	add(6, "now()", "now()")
	add(7, "'infinity'", "now()")
	add(8, "'294276-01-01'", "now()")
	add(9, "now() + interval '1 hour'", "now() + interval '1 hour'")
	add(10, "now() + interval '1 hour'", "now()") // delayed by its producer
	add(11, "'0001-01-01 00:00:00Z'", "now()")    // Go's zero time
	store := o.Store("shop", uuid.New()).(*pgstore.Store)

	odd, n, err := store.OddTimes(t.Context(), nil)
	need.That(t, err == nil && n == 9 && len(odd) == 5, "%d odd times, %v, %v; want 9, and 5 of them named", n, odd, err)
	for i, want := range []string{"due since before 1970", "due since before 1970", "created before 1970", "created in the future", "created in the future"} {
		if len(odd) > i && (odd[i].ID[15] != byte(i+1) || !strings.Contains(odd[i].What, want)) {
			t.Errorf("row %d is %+v, want %q", i+1, odd[i], want)
		}
	}
	if _, n, err := store.OddTimes(t.Context(), []string{"others"}); n != 0 || err != nil {
		t.Errorf("%d odd times of another topic, %v", n, err)
	}
	depth, err := store.Depth(t.Context(), nil)
	need.OK(t, err)
	d := depth.Topics[0]
	need.That(t, d.Pending.N == 8 && d.Scheduled.N == 3 && d.OldestPending.Year() >= 1970, "depth is %+v, want 8 that wait, not since before 1970, and 3 delayed", d)
	for _, keys := range []*dispatcher.KeyOrder{nil, {PerKey: 1}} {
		var seqs []int
		for range 9 {
			req := share("orders", 1) // a floor at each row
			req.Keys = keys
			claimed, err := store.Claim(t.Context(), req)
			need.OK(t, err)
			for _, e := range claimed.Events {
				seqs = append(seqs, int(e.ID[15]))
				if y := e.CreatedAt.UTC().Year(); y < 1970 || y > 9999 {
					t.Errorf("row %d was created in %d", e.ID[15], y)
				}
			}
		}
		slices.Sort(seqs)
		need.That(t, slices.Equal(seqs, []int{1, 2, 3, 4, 5, 6, 0x11}), "with order %+v: claimed %v, want all seven that are due", keys, seqs)
		pgtest.Exec(o, `update outbox.outbox_events set locked_until = '-infinity' where status = 'processing'`)
	}
	need.Want(t, nil, "%v", need.Err(store.Depth(t.Context(), nil)))
}

// What a clock that was ahead made late is due, if its producer did not delay it; also where it was leased then, and behind many
// rows that wait rightly.
// CONTRACT: C-3
func TestRowOfAClockAheadIsDue(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload, created_at, next_attempt_at, status, locked_by, locked_until, updated_at, aggregate_id)
		select gen_random_uuid(), 'shop', 'orders', '{}', created, due, status, worker, worker_until, case when worker is null then now() else worker_until end, what
		from (values ('ahead', now() + interval '1 hour', now() + interval '1 hour', 'pending', null::uuid, null::timestamptz),
			('ahead and leased', now() + interval '1 hour', now() + interval '1 hour', 'processing', gen_random_uuid(), now() + interval '61 minutes'),
			('ahead and delayed', now() + interval '1 hour', now() + interval '2 hours', 'pending', null, null),
			('delayed', now(), now() + interval '1 hour', 'pending', null, null),
			('a moment ahead', now() + interval '50 seconds', now() + interval '50 seconds', 'pending', null, null)) as made (what, created, due, status, worker, worker_until)`)
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload, next_attempt_at) select gen_random_uuid(), 'shop', 'orders', '{}', now() + n * interval '0.5 seconds' + interval '2 minutes' from generate_series(1, 6000) as n`)
	store := o.Store("shop", uuid.New()).(*pgstore.Store)
	need.OK(t, store.SetRight(t.Context(), []string{"others"}))
	claimed, err := store.Claim(t.Context(), share("orders", 10))
	need.That(t, err == nil && len(claimed.Events) == 0, "claimed %d, %v before anything was set right", len(claimed.Events), err)
	need.OK(t, store.SetRight(t.Context(), nil))
	var got []string
	claimed, err = store.Claim(t.Context(), share("orders", 10))
	for _, e := range claimed.Events {
		got = append(got, e.AggregateID)
	}
	slices.Sort(got)
	need.That(t, err == nil && slices.Equal(got, []string{"ahead", "ahead and leased"}), "claimed %q, %v", got, err)
}

// A lease that was given by a clock which was an hour ahead is over, and named until then. One of a worker with a longer
// lease than this one's is not, nor one that was given by hand for ever, which is named.
// CONTRACT: C-3, C-20
func TestLeaseOfAClockAheadIsOver(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload) select gen_random_uuid(), 'shop', 'orders', '{}' from generate_series(1, 4)`)
	other := o.Store("shop", uuid.New())
	long := share("orders", 4)
	long.Lease = 10 * time.Hour
	if c, err := other.Claim(t.Context(), long); err != nil || len(c.Events) != 4 {
		t.Fatalf("claimed %+v, %v", c, err)
	}
	pgtest.Exec(o, `update outbox.outbox_events set updated_at = now() + interval '1 hour', locked_until = now() + interval '61 minutes' where seq = 2`)
	pgtest.Exec(o, `update outbox.outbox_events set locked_until = 'infinity' where seq = 3`)
	pgtest.Exec(o, `update outbox.outbox_events set updated_at = 'infinity' where seq = 4`)
	store := o.Store("shop", uuid.New()).(*pgstore.Store)
	if odd, n, err := store.OddTimes(t.Context(), nil); err != nil || n != 3 || !strings.Contains(odd[0].What, "leased in the future") {
		t.Errorf("odd times are %v, %d, %v; want rows 2 to 4", odd, n, err)
	}
	for _, keys := range []*dispatcher.KeyOrder{nil, {PerKey: 3}} {
		req := share("orders", 4)
		req.Keys = keys
		c, err := store.Claim(t.Context(), req)
		need.OK(t, err)
		var seqs []int64
		for _, e := range c.Events {
			seqs = append(seqs, e.Seq)
		}
		slices.Sort(seqs)
		need.That(t, slices.Equal(seqs, []int64{2, 4}), "claimed %v, want rows 2 and 4", seqs)
		pgtest.Exec(o, `update outbox.outbox_events set updated_at = now() + interval '1 hour', locked_until = now() + interval '61 minutes' where seq in (2, 4)`)
	}
}

// A topic that is gone leaves nothing behind in the store.
func TestTopicsThatAreGoneAreForgotten(t *testing.T) {
	t.Parallel()
	o := newTenants(t)
	store := o.Store("shop", uuid.New())
	for i := range 60 {
		topic := fmt.Sprint("day-", i)
		req := share(topic, 1)
		if req.Fair = i%3 == 1; i%3 == 2 {
			req.Keys = &dispatcher.KeyOrder{PerKey: 1}
		}
		pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload) values (gen_random_uuid(), 'shop', $1, '{}')`, topic)
		if c, err := store.Claim(t.Context(), req); err != nil || len(c.Events) != 1 {
			t.Fatalf("claimed %+v, %v", c, err)
		} else if _, err := store.Ack(t.Context(), leasesOf(c.Events)); err != nil {
			t.Fatal(err)
		}
	}
	need.Want(t, 60, "%d topics are remembered, want 60", pgstore.Remembered(store))
	need.OK(t, need.Err(store.Topics(t.Context())))
	need.Want(t, 0, "%d topics are remembered that have no rows", pgstore.Remembered(store))
}

// pastRow adds a row with an id and a payload, as old as its id says.
func (o outbox) pastRow(id uuid.UUID, namespace, topic string, age time.Duration, bytes int) {
	o.Helper()
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, headers, payload, created_at, status, attempts, lease)
		values ($1, $2, $3, '{"a": 1}', to_jsonb(repeat('x', $4)), now() - $5::interval, 'delivered', 3, 9)`, id, namespace, topic, bytes, age)
}

// idOf is an id of version 7 of a time.
func idOf(at time.Time, n byte) (id uuid.UUID) {
	ms := at.UnixMilli()
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	id[6], id[8], id[15] = 0x70, 0x80, n
	return id
}

// past reads rows, and returns the last bytes of their ids and the sizes of the pages.
func (o outbox) past(p pgstore.Past) (ids, pages []int, looked pgstore.PastRead) {
	o.Helper()
	looked, err := o.Store("shop", uuid.New()).(*pgstore.Store).Past(o.Context(), p, func(page []pgstore.PastRow) error {
		pages = append(pages, len(page))
		for _, row := range page {
			ids = append(ids, int(row.Event.ID[15]))
		}
		return nil
	})
	need.OK(o, err)
	return ids, pages, looked
}

// Rows come newest first, of the namespace and the topics, of the time and the number that were requested. Rows
// whose ids are not of version 7 come last.
func TestPastRowsComeNewestFirst(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	now := o.Now()
	for n := range 9 {
		age := time.Duration(n) * time.Hour
		o.pastRow(idOf(now.Add(-age), byte(n)), "shop", []string{"a", "b"}[n%2], age, 1)
	}
	o.pastRow(idOf(now, 99), "bank", "a", 0, 1)
	o.pastRow(uuid.MustParse("f0000000-0000-4000-8000-00000000000a"), "shop", "a", 0, 1)
	o.pastRow(uuid.MustParse("e0000000-0000-4000-8000-00000000000b"), "shop", "a", 3*time.Hour, 1)
	for name, c := range map[string]struct {
		past   pgstore.Past
		want   []int
		looked int
	}{
		"all":        {pgstore.Past{Last: 100}, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11}, 12},
		"the newest": {pgstore.Past{Last: 3}, []int{0, 1, 2}, 10},
		"a topic":    {pgstore.Past{Last: 2, Topics: []string{"b"}}, []int{1, 3}, 10},
		"topics":     {pgstore.Past{Last: 3, Topics: []string{"b", "c", "a"}}, []int{0, 1, 2}, 10},
		"since":      {pgstore.Past{Last: 100, Since: 150 * time.Minute}, []int{0, 1, 2, 10}, 7}, // 3 may have been late
		"none":       {pgstore.Past{Last: 100, Topics: []string{"c"}}, nil, 12},
	} {
		got, _, looked := o.past(c.past)
		need.That(t, slices.Equal(got, c.want) && looked == (pgstore.PastRead{Rows: c.looked, All: true}),
			"%s: got %v, looked at %+v; want %v, %d", name, got, looked, c.want, c.looked)
	}
}

// A row is handed over whole, with its status, and one that cannot be read harms no other.
func TestPastRowsAreWhole(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	id := uuid.MustParse("01900000-0000-7000-8000-000000000001")
	o.pastRow(id, "shop", "orders", time.Hour, 3)
	o.pastRow(uuid.MustParse("01900000-0000-7000-8000-000000000002"), "shop", "orders", time.Hour, 3)
	pgtest.Exec(o, `update outbox.outbox_events set event_type = 'Placed', aggregate_id = 'a', status = 'dead', dead_reason = 'permanent_failure' where id = $1`, id)
	pgtest.Exec(o, `update outbox.outbox_events set headers = '[]' where id <> $1`, id)
	var rows []pgstore.PastRow
	_, err := o.Store("shop", uuid.New()).(*pgstore.Store).Past(t.Context(), pgstore.Past{Last: 9}, func(page []pgstore.PastRow) error {
		rows = append(rows, page...)
		return nil
	})
	need.Must(t, err == nil && len(rows) == 2, "%d rows, error %v", len(rows), err)
	need.That(t, rows[0].Unreadable != nil && rows[0].Status == "delivered" && rows[1].Unreadable == nil, "the first is %+v; want one that cannot be read", rows[0])
	e := rows[1].Event
	got := fmt.Sprintln(e.ID, e.Namespace, e.Topic, e.EventType, e.AggregateID, e.Headers, string(e.Payload), e.Attempt, e.LeaseNumber, rows[1].Status, rows[1].Reason)
	need.Want(t, id.String()+" shop orders Placed a map[a:1] \"xxx\" 3 9 dead permanent_failure\n", "%v", got)
}

// Pages are bounded in rows and bytes, and the search in rows. CONTRACT: C-35
func TestPastIsBoundedInRowsAndBytes(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	now := o.Now()
	for n, bytes := range []int{3 << 20, 1 << 10, 5 << 20, 1 << 10, 3 << 20, 3 << 20} {
		o.pastRow(idOf(now.Add(-time.Duration(n)*time.Minute), byte(n)), "shop", "large", 0, bytes)
	}
	ids, pages, _ := o.past(pgstore.Past{Last: 100})
	need.That(t, slices.Equal(pages, []int{2, 1, 2, 1}) && len(ids) == 6, "pages of %v rows, of %v", pages, ids)
	pgtest.Exec(o, `delete from outbox.outbox_events`)
	o.fill(2500, "orders")
	ids, pages, looked := o.past(pgstore.Past{Last: 2100})
	need.That(t, len(ids) == 2100 && slices.Max(pages) == 100 && looked.All, "%d rows in pages of %v, looked at %+v", len(ids), pages, looked)
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload)
		select ('00000000-0000-7000-8000-' || lpad(to_hex(n + 5000), 12, '0'))::uuid, 'bank', 'orders', '{}' from generate_series(1, 110000) as n`)
	pgtest.Exec(o, `update outbox.outbox_events set namespace = 'bank' where namespace = 'shop'`)
	ids, _, looked = o.past(pgstore.Past{Last: 10})
	need.That(t, len(ids) == 0 && looked == (pgstore.PastRead{Rows: 100_100}), "%d rows, looked at %+v; want it to end after 100100", len(ids), looked)
}

// Whatever the statistics say, a look is a part of the primary key: no table is read, and nothing is sorted that
// grows with it.
func TestPastReadsThePrimaryKey(t *testing.T) {
	t.Parallel()
	p := newPlanned(t, pgtest.Migrated(t))
	for _, statistics := range []string{"none", "fresh"} {
		p.fill(20_000, statistics)
		if statistics == "fresh" {
			pgtest.Exec(p, `vacuum analyze outbox.outbox_events`)
		}
		pgtest.Exec(p, `deallocate all`)
		pgtest.Exec(p, `prepare past as `+pgstore.PastSQL())
		pgtest.Exec(p, `prepare past_rows as `+pgstore.PastRowsSQL())
		look := p.explain(`execute past ('shop', null, null, 'ffffffff-ffff-ffff-ffff-ffffffffffff', '00000000-0000-0000-0000-000000000000', 100)`)
		need.That(t, look.indexes()["outbox_events_pkey"] && !look.has("Seq Scan") && !look.has("Sort") && look.buffers() <= 400,
			"statistics %s: a look of 100 rows reads %d buffers: %+v", statistics, look.buffers(), look)
		ids := pgtest.Value[string](p.outbox, `select array_agg(id)::text from (select id from outbox.outbox_events limit 100) as e`)
		if rows := p.explain(`execute past_rows ('` + ids + `')`); rows.has("Seq Scan") || rows.Rows != 100 || rows.buffers() > 1000 {
			t.Errorf("statistics %s: a page of %d rows reads %d buffers: %+v", statistics, rows.Rows, rows.buffers(), rows)
		}
	}
}

// Nothing that a page's reader does keeps a transaction open, its errors end the search, and the database itself
// refuses to write.
func TestPastOnlyReads(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fill(300, "orders")
	// A function in a place that the statements read would be the only way to write.
	pgtest.Exec(o, `alter table outbox.outbox_events rename to real;
		create function outbox.touch() returns boolean language sql volatile as $$ update outbox.real set attempts = 0 returning true $$;
		create view outbox.outbox_events as select * from outbox.real where outbox.touch()`)
	store := o.Store("shop", uuid.New()).(*pgstore.Store)
	nothing := func([]pgstore.PastRow) error { return nil }
	need.Fails(t, "read-only transaction", "error %v; want that of a transaction that only reads", need.Err(store.Past(t.Context(), pgstore.Past{Last: 9}, nothing)))
	pgtest.Exec(o, `drop view outbox.outbox_events; alter table outbox.real rename to outbox_events`)
	stop, calls := errors.New("stop"), 0
	_, err := store.Past(t.Context(), pgstore.Past{Last: 300}, func([]pgstore.PastRow) error {
		calls++
		need.Want(t, 0, "%d connections are held", o.Stat().AcquiredConns())
		return stop
	})
	need.That(t, errors.Is(err, stop) && calls == 1, "after %d calls: %v", calls, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := store.Past(ended, pgstore.Past{Last: 9}, nothing); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v; want that it was cancelled", err)
	}
}
