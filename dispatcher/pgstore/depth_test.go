package pgstore_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Every count is exact up to the cap, and an estimate that says so from there on.
// CONTRACT: C-96
func TestDepthCap(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	const n = dispatcher.DepthCap
	o.fill(n, "pending", "scheduled")
	pgtest.Exec(o, `update outbox.outbox_events set next_attempt_at = now() + interval '1 hour' where topic = 'scheduled'`)
	pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts)
		select gen_random_uuid(), 'shop', 'dead', 'poison_message', 1 from generate_series(1, $1::integer)`, n)
	pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts, resolution, resolved_at, resolved_by)
		select gen_random_uuid(), 'shop', 'dead', 'poison_message', 1, 'replayed', now(), 'me' from generate_series(1, 1000)`)
	o.wantCounts(0, false)

	o.fill(2*n, "pending", "scheduled")
	pgtest.Exec(o, `update outbox.outbox_events set next_attempt_at = now() + interval '1 hour' where topic = 'scheduled'`)
	pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts)
		select gen_random_uuid(), 'shop', 'dead', 'poison_message', 1 from generate_series(1, $1::integer)`, 2*n)
	o.wantCounts(2*n/10, true)
}

// wantCounts checks each count against SQL. It may be off by so much.
func (o outbox) wantCounts(off int64, estimated bool) {
	o.Helper()
	depth, err := o.Store("shop", uuid.New()).Depth(o.Context(), nil)
	if err != nil {
		o.Fatal(err)
	}
	got := map[string]dispatcher.TopicDepth{}
	for _, d := range depth.Topics {
		got[d.Topic] = d
	}
	for topic, count := range map[string]dispatcher.Count{
		"pending": got["pending"].Pending, "scheduled": got["scheduled"].Scheduled, "dead": got["dead"].Dead,
	} {
		want := pgtest.Value[int64](o, `select (select count(*) from outbox.outbox_events where topic = $1)
			+ (select count(*) from outbox.outbox_dead_letters where topic = $1 and resolution is null)`, topic)
		if count.Estimated != estimated || max(count.N-want, want-count.N) > off {
			o.Errorf("%s is %+v, want %d, estimated: %t", topic, count, want, estimated)
		}
	}
}

// A dispatcher's rights are enough, and the size grows with the table. CONTRACT: C-95
func TestSizesGrowWithTheTable(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	sizes := func() map[string]int64 {
		found, err := o.Store("shop", uuid.New()).(*pgstore.Store).Sizes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	empty := sizes()
	o.fill(1000, "orders")
	filled := sizes()
	if len(empty) != 2 || empty["outbox_dead_letters"] == 0 || filled["outbox_dead_letters"] != empty["outbox_dead_letters"] {
		t.Errorf("empty: %v, filled: %v", empty, filled)
	}
	if filled["outbox_events"] < empty["outbox_events"]+1000*100 {
		t.Errorf("1000 rows took the table from %d to %d bytes", empty["outbox_events"], filled["outbox_events"])
	}
}
