package pgstore_test

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// RowsVariable names the environment variable with the number of rows of TestStatementsKeepTheirPlansAmongAMillionRows. Set it to 10000000
// to see that ten times as many make no difference.
const RowsVariable = "OUTBOX_TEST_ROWS"

// TestStatementsKeepTheirPlansAmongAMillionRows puts a million rows of one topic next to a few of others, and looks at what the
// statements then do. Loading them takes most of its time, so all that needs them is in here.
// REQUIREMENT: OVERVIEW-4, OVERVIEW-5, STORAGE-12, MODKIT-2
func TestStatementsKeepTheirPlansAmongAMillionRows(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	million := 1_000_000
	if text := os.Getenv(RowsVariable); text != "" {
		var err error
		if million, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", RowsVariable, err)
		}
	}
	p := newPlanned(t, pgtest.Migrated(t))
	p.fill(5, "first")
	pgtest.Exec(p, `vacuum analyze outbox.outbox_events`)
	p.prepare() // on a table of one page: these plans are kept, as a dispatcher's are
	p.fill(1000, "before", "after")
	alone := p.claim("before", 100)
	p.fill(million, "big")
	p.wantIndexPlans("plans kept from a table of one page")
	p.prepare()
	p.wantIndexPlans("stale statistics")
	neighbour := p.claim("after", 100)
	t.Logf("claim of 100: %d buffers alone, %d (%.1f ms) next to a million rows of another topic", alone.buffers(), neighbour.buffers(), neighbour.millis)
	// The live index is higher by now: its descent reads a few pages more.
	if neighbour.buffers() > alone.buffers()+3 {
		t.Errorf("a claim reads %d buffers next to a million rows of another topic, and %d without them", neighbour.buffers(), alone.buffers())
	}
	p.wantExpiredCheap()
	p.wantDepth("big")
	p.markDead("after", million)
	dead := p.claim("after", 100)
	t.Logf("claim of 100: %d buffers (%.1f ms) among %d rows of its topic that are not due, and as many delivered", dead.buffers(), dead.millis, million)
	if dead.Rows != 100 || dead.buffers() > alone.buffers()*3/2 {
		t.Errorf("a claim reads %d buffers among rows that are not due or delivered, and %d without them", dead.buffers(), alone.buffers())
	}

	pgtest.Exec(p, `delete from pg_statistic where starelid = 'outbox.outbox_events'::regclass`)
	pgtest.Exec(p, `update pg_class set reltuples = -1, relpages = 0 where oid in (
		select 'outbox.outbox_events'::regclass union select indexrelid from pg_index where indrelid = 'outbox.outbox_events'::regclass)`)
	p.prepare()
	p.wantIndexPlans("empty statistics")
	pgtest.Exec(p, `analyze outbox.outbox_events`)
	p.prepare()
	p.wantIndexPlans("fresh statistics")
}

// markDead adds n rows of a topic that are due in an hour or more, and n that are delivered.
func (p planned) markDead(topic string, n int) {
	p.Helper()
	pgtest.Exec(p, `insert into outbox.outbox_events (id, namespace, topic, payload, next_attempt_at)
		select (lpad(to_hex(n), 8, 'a') || substr(md5(n::text), 1, 24))::uuid, 'shop', $1, '{}', now() + make_interval(hours => 1, secs => n)
		from generate_series(1, $2::integer) as n`, topic, n)
	pgtest.Exec(p, `insert into outbox.outbox_events (id, namespace, topic, payload, status, attempts)
		select (lpad(to_hex(n), 8, 'b') || substr(md5(n::text), 1, 24))::uuid, 'shop', $1, '{}', 'delivered', 1
		from generate_series(1, $2::integer) as n`, topic, n)
}

// wantIndexPlans claims and acks rows of the big topic. Neither reads the table from end to end, nor
// sorts.
// CONTRACT: C-2
func (p planned) wantIndexPlans(when string) {
	p.Helper()
	claim := p.claim("big", 100)
	ack := p.ack("big")
	p.Logf("%s: claim %d buffers, %.1f ms; ack %d buffers, %.1f ms", when, claim.buffers(), claim.millis, ack.buffers(), ack.millis)
	for _, test := range []struct {
		verb, index string
		plan        plan
	}{{"claim", "outbox_events_live", claim}, {"ack", "outbox_events_pkey", ack}} {
		if n := test.plan.written(); n != 100 {
			p.Errorf("%s: %s wrote %d rows, want 100", when, test.verb, n)
		}
		for _, bad := range []string{"Seq Scan", "Sort", "Incremental Sort", "Bitmap Heap Scan"} {
			if test.plan.has(bad) {
				p.Errorf("%s: %s has a %s: %+v", when, test.verb, bad, test.plan)
			}
		}
		if n := test.plan.buffers(); n > 1500 {
			p.Errorf("%s: %s of 100 rows read %d buffers", when, test.verb, n)
		}
		if got := slices.Collect(maps.Keys(test.plan.indexes())); !slices.Equal(got, []string{test.index}) {
			p.Errorf("%s: %s uses the indexes %v, want %s", when, test.verb, got, test.index)
		}
	}
}

// wantExpiredCheap: expired leases are found at the front of the range, with no search behind it.
// CONTRACT: C-2
func (p planned) wantExpiredCheap() {
	p.Helper()
	fresh := p.claim("big", 100)
	pgtest.Exec(p, `update outbox.outbox_events set locked_until = now() - interval '1 second' where live and status = 'processing' and topic = 'big'`)
	expired := p.claim("big", 100)
	p.Logf("claim of 100 expired of a million: %d buffers, %.1f ms", expired.buffers(), expired.millis)
	if n := pgtest.Value[int](p.outbox, `select count(*) from outbox.outbox_events where topic = 'big' and suspicion = 1`); n != 100 {
		p.Errorf("%d rows were claimed again, want 100", n)
	}
	if expired.buffers() > 2*fresh.buffers() {
		p.Errorf("a claim of expired rows reads %d buffers, one of pending rows %d", expired.buffers(), fresh.buffers())
	}
	p.ack("big")
}

// wantDepth: a count of any backlog reads a bounded number of pages, and is about right.
// CONTRACT: C-96
func (p planned) wantDepth(topic string) {
	p.Helper()
	store := p.Store("shop", uuid.New())
	exact := pgtest.Value[int64](p.outbox, `select count(*) from outbox.outbox_events where topic = $1 and status = 'pending'`, topic)
	before := p.blocks()
	depth, err := store.Depth(p.Context(), []string{topic})
	if err != nil {
		p.Fatal(err)
	}
	blocks := p.blocks() - before
	got := depth.Topics[0].Pending
	p.Logf("depth of %d pending: %d, estimated %t, with %d buffers", exact, got.N, got.Estimated, blocks)
	if off := max(got.N-exact, exact-got.N); !got.Estimated || off > exact/10 {
		p.Errorf("depth says %+v pending of %d", got, exact)
	}
	if blocks > 3*dispatcher.DepthCap {
		p.Errorf("depth read %d buffers", blocks)
	}
}

// blocks is how many buffers of the events and their indexes this connection has read.
func (p planned) blocks() int64 {
	p.Helper()
	pgtest.HandIn(p, p.Pool)
	return pgtest.Value[int64](p.outbox, `select heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit
		from pg_statio_user_tables where relid = 'outbox.outbox_events'::regclass`)
}
