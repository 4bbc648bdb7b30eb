package pgstore_test

import (
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/retention"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Claims read no more during a sweep that removes what was delivered a moment ago than without one.
// CONTRACT: C-60
func TestClaimsDuringASweep(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	const rounds, batch = 15, 500
	read := map[bool]int{}
	for _, sweeps := range []bool{false, true} {
		dsn := pgtest.Migrated(t)
		p := newPlanned(t, dsn)
		p.fill((rounds+1)*batch, "orders")
		p.prepare()
		s := retention.New(pgtest.Pool(t, dsn), retention.Options{DeadResolved: 1})
		for range rounds {
			claimed := p.claim("orders", batch)
			if n := claimed.written(); n != batch {
				t.Fatalf("claimed %d rows", n)
			}
			read[sweeps] += claimed.buffers()
			p.ack("orders")
			if !sweeps {
				continue
			}
			pgtest.Exec(p, `update outbox.outbox_sweeps set next_run = now()`)
			if ran, err := s.Sweep(t.Context()); err != nil || !ran {
				t.Fatalf("the sweep ran: %v, %v", ran, err)
			}
			if n := pgtest.Value[int](p.outbox, `select count(*) from outbox.outbox_events where status = 'delivered'`); n != 0 {
				t.Fatalf("%d delivered rows are there after a sweep", n)
			}
		}
	}
	t.Logf("buffers of a claim of %d: %d without a sweep, %d during one", batch, read[false]/rounds, read[true]/rounds)
	if read[true] > read[false]*11/10 {
		t.Errorf("claims read %d buffers during a sweep, and %d without one", read[true], read[false])
	}
}
