package pgstore_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// manyDeadLetters adds so many open dead letters of a topic in so many groups, as many in each, and of each another one
// that is resolved.
func (o outbox) manyDeadLetters(topic string, records, groups int) {
	o.Helper()
	pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, class, code, attempts, dead_at, resolution, resolved_at, resolved_by)
		select gen_random_uuid(), 'shop', $1, 'permanent_failure', 'http', (n % $3::integer)::text, 1, now() - n * interval '1 second',
			resolution, case when resolution <> '' then now() end, case when resolution <> '' then 'me' end
		from generate_series(1, $2::integer) as n cross join (values (null), ('discarded')) as r (resolution)`, topic, records, groups)
}

// The groups of 100,000 dead letters are found by the index alone: it is not read from end to end, and neither is the
// table; and what is sorted are groups. With old statistics and none.
// CONTRACT: C-96
// REQUIREMENT: OVERVIEW-5, STORAGE-20
func TestGroupsPlan(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	p := newPlanned(t, pgtest.Migrated(t))
	pgtest.Exec(p, `alter table outbox.outbox_dead_letters set (autovacuum_enabled = off)`)
	pgtest.Exec(p, `prepare groups as `+pgstore.GroupsSQL())
	groups := func() plan { return p.explain(`execute groups ('shop', '{orders,none}', 1000, 10000, 20000, 20)`) }
	groups() // makes the plan of an empty table
	p.manyDeadLetters("orders", 100_000, 30)
	for _, statistics := range []string{"of an empty table", "none", "new"} {
		switch statistics {
		case "none":
			pgtest.Exec(p, `deallocate groups; prepare groups as `+pgstore.GroupsSQL())
		case "new":
			pgtest.Exec(p, `vacuum analyze outbox.outbox_dead_letters`)
			pgtest.Exec(p, `deallocate groups; prepare groups as `+pgstore.GroupsSQL())
		}
		plan := groups()
		t.Logf("statistics %s: %d groups, %d buffers in %.1f ms", statistics, plan.Rows, plan.buffers(), plan.millis)
		if plan.Rows != 20 {
			t.Errorf("statistics %s: %d groups, want 20", statistics, plan.Rows)
		}
		if plan.has("Seq Scan") || plan.has("Bitmap Heap Scan") {
			t.Errorf("statistics %s: the table is read: %+v", statistics, plan)
		}
		for name := range plan.indexes() {
			if name != "outbox_dead_letters_open" {
				t.Errorf("statistics %s: the index %s is used", statistics, name)
			}
		}
		if n := plan.sorted(); n > 40 {
			t.Errorf("statistics %s: %d rows are sorted, want at most the steps to 30 groups", statistics, n)
		}
		// 666 of each of 30 groups are counted, each with its page of the table while nothing was vacuumed.
		if n := plan.buffers(); n > 30_000 {
			t.Errorf("statistics %s: %d buffers", statistics, n)
		}
	}
}

// sorted is the most rows that a node sorts.
func (p plan) sorted() (n int) {
	if p.Type == "Sort" || p.Type == "Incremental Sort" {
		n = p.Rows
		for _, part := range p.Parts {
			n = max(n, part.Rows)
		}
	}
	for _, part := range p.Parts {
		n = max(n, part.sorted())
	}
	return n
}

// Small groups are counted, large ones estimated, and the largest twenty are listed.
// CONTRACT: C-96
func TestGroupsEstimated(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.manyDeadLetters("orders", 25_000, 1)
	o.manyDeadLetters("small", 25*10, 25)
	depth, err := o.Store("shop", uuid.New()).Depth(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(depth.Groups) != dispatcher.GroupsListed {
		t.Fatalf("%d groups, want %d", len(depth.Groups), dispatcher.GroupsListed)
	}
	for i, g := range depth.Groups {
		if i > 0 && (g.Topic != "small" || g.Count != dispatcher.Count{N: 10}) {
			t.Errorf("group %d is %+v, want ten of topic small", i, g)
		}
	}
	if g := depth.Groups[0]; g.Topic != "orders" || !g.Count.Estimated || g.Count.N < 20_000 || g.Count.N > 30_000 || g.Count.N%1000 != 0 {
		t.Errorf("the first group is %+v, want about 25,000 of topic orders, in thousands", g)
	}
	for _, d := range depth.Topics {
		if want := (dispatcher.Count{N: 250}); d.Topic == "small" && d.Dead != want {
			t.Errorf("the topic with small groups has %+v, want %+v", d.Dead, want)
		}
	}
}

// The nack of an event is what writes its failures: their size is printed with the other budgets.
func TestNackBudget(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	p, _ := newServer(t)
	const events = 1000
	p.fill(events, "orders")
	store := p.Store("shop", uuid.New())
	for attempt := 1; attempt <= 7; attempt++ {
		claimed, err := store.Claim(t.Context(), share("orders", events))
		if err != nil || len(claimed.Events) != events {
			t.Fatalf("claimed %d events, %v", len(claimed.Events), err)
		}
		failures := make([]dispatcher.Failure, events)
		for i, e := range claimed.Events {
			failures[i] = dispatcher.Failure{Lease: e.Lease(), Cause: dispatcher.Cause{Class: "http", Code: "503"},
				Error: fmt.Sprintf("https://shop.example/events returned 503 Service Unavailable; the destination's log says why; the event is retried %d", i)}
		}
		written := p.wal(func() {
			if lost, err := store.Nack(t.Context(), failures); err != nil || len(lost) > 0 {
				t.Fatalf("lost %v, %v", lost, err)
			}
		}) / events
		t.Logf("WAL bytes per event: %d for nack %d", written, attempt)
		if written > 4000 {
			t.Errorf("nack %d writes %d bytes of WAL for an event, want at most 4000", attempt, written)
		}
	}
}
