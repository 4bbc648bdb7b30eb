package adopt_test

import (
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations/adopt"
)

// A producer may add many rows in one transaction, each of which runs the trigger's block in a subtransaction. It logs what a
// row costs.
//
// CONTRACT: C-91
func TestManyRowsInOneTransaction(t *testing.T) {
	const rows = 5000
	r := newRig(t, overviewService())
	insert := func(what string) {
		began := time.Now()
		r.exec(`insert into outbox.events (id, topic, payload) select gen_random_uuid(), 'orders', '{"a": 1}' from generate_series(1, 5000)`)
		t.Logf("%s: %v a row", what, time.Since(began)/rows)
	}
	insert("without a trigger")
	r.step(adopt.ToShadow, adopt.Shadow, true)
	insert("in the shadow")
	if s := r.status(); s.Theirs != rows || s.Ours != rows || s.Missing != 0 || s.Extra != 0 {
		t.Errorf("in the shadow: %+v", s)
	}
	began := time.Now()
	r.step(adopt.Cutover, adopt.Live, true)
	t.Logf("cutover: %v a row", time.Since(began)/(2*rows))
	insert("after the cutover")
	if events, open := pgtest.Value[int](r, `select count(*) from `+pgtest.Schema+`.outbox_events`), pgtest.Value[int](r, `select count(*) from outbox.events where `+r.old.open); events != 3*rows || open != 0 {
		t.Errorf("after the cutover: %d events, %d open rows of theirs; want %d and 0", events, open, 3*rows)
	}
}
