package pgstore_test

import (
	"fmt"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Most outboxes are empty most of the time, and that is when vacuum and analyze find them. The planner
// then takes each index of live rows for one page, however many it has, and all of them for equally
// good. Plans that are made then are kept, and must do for the next backlog.
// CONTRACT: C-2, C-50
func TestPlansOfDrained(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	p := newPlanned(t, pgtest.Migrated(t))
	fill := func(n int, topic string) { // in the same order each time, which is not that of seq
		pgtest.Exec(p, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload)
			select md5(concat($1::text, n, '-', $2::integer))::uuid, 'shop', $1, 'key ' || n % 1000, '{}' from generate_series(1, $2::integer) as n`, topic, n)
	}
	fill(20_000, "big")
	pgtest.Exec(p, `update outbox.outbox_events set status = 'delivered'`)
	pgtest.Exec(p, `vacuum analyze outbox.outbox_events`)
	if n := pgtest.Value[int](p.outbox, `select relpages from pg_class where relname = 'outbox_events_live' and reltuples = 0`); n < 50 {
		t.Fatalf("the index of live rows has %d pages: the test does not show what it is for", n)
	}
	p.prepare()
	fill(2000, "big")
	p.wantIndexPlans("drained")
	p.prepareKeyed()
	for _, read := range []string{far, near, dense} {
		topic := fmt.Sprintf("%q", read)
		fill(2000, read)
		for _, limit := range []int{10, 100} {
			claim := p.claimKeyed(topic, limit, limit*5/4, read)
			t.Logf("a claim in order of %d rows, read %s: %d buffers in %.1f ms", claim.Rows, read, claim.buffers(), claim.millis)
			if claim.Rows < limit/3 { // the dense one looks at no more rows than the limit
				t.Errorf("a claim in order returned %d rows, want at least a third of %d", claim.Rows, limit)
			}
			if n := claim.buffers(); n > 200+30*limit {
				t.Errorf("a claim in order of %d rows reads %d buffers", limit, n)
			}
		}
	}
}
