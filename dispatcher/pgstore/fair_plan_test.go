package pgstore_test

import (
	"fmt"
	"testing"

	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// A fair claim reads what its rows and its turns need, with any number of tenants and with any statistics.
//
// CONTRACT: C-2, C-37
func TestFairClaimsKeepTheirPlans(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	const mostBuffers = 2000 // 1,720 when other tests keep row versions alive
	for _, tenants := range []int{1, 100, 10_000} {
		t.Run(fmt.Sprint(tenants), func(t *testing.T) {
			t.Parallel()
			p := newPlanned(t, pgtest.Migrated(t))
			upTenants(t, p.Pool)
			claim := func(when string) {
				t.Helper()
				pgtest.Exec(p, `deallocate all`)
				pgtest.Exec(p, `prepare claim_fair as `+pgstore.ClaimFairSQL())
				for range 2 {
					got := p.explain(fmt.Sprintf(`execute claim_fair ('shop', '{orders}', '{100}', '{-infinity}',
						'{00000000-0000-7000-8000-000000000050}', 10, 33554432, '%s', '1 minute', true, 33554432, '{}', '{}', '', null, 1)`, worker))
					t.Logf("%d tenants, %s: %d buffers, %.1f ms for %d rows", tenants, when, got.buffers(), got.millis, got.written())
					if got.written() != 100 || got.buffers() > mostBuffers || got.has("Seq Scan") {
						t.Errorf("%s: %d buffers for %d rows, indexes %v; want at most %d for 100", when, got.buffers(), got.written(), got.indexes(), mostBuffers)
					}
				}
			}
			p.addTenants(1, tenants, 40_000/tenants, 0)
			claim("statistics of an empty table")
			pgtest.Exec(p, `vacuum analyze outbox.outbox_events`)
			claim("analyzed")
		})
	}
}
