package pgstore_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/unserved"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// Events that are moved to a name that a dispatcher serves in order per key come behind what that has passed, in their order.
// They get the next numbers of their aggregate in another namespace, and keep them in their own.
// CONTRACT: C-50
func TestMovedEventsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	enqueue := func(namespace, topic string, n int) {
		t.Helper()
		pgtest.Exec(o, `select outbox.enqueue($1::text, $2::text, jsonb_build_object('n', n), p_aggregate_id => 'a', p_options => '{"aggregateSequence": true}')
			from generate_series(1, $3::integer) as n`, namespace, topic, n)
	}
	const served, moved = 200, 3
	enqueue("shpo", "orders", moved)
	enqueue("shop", "oders", moved)
	pgtest.Exec(o, `update outbox.outbox_events set next_attempt_at = next_attempt_at - seq * interval '1 second'`) // the last is due first
	enqueue("shop", "orders", served)
	store := o.Store("shop", uuid.New())
	deliver := func(n int) (numbers []int64) {
		t.Helper()
		pgtest.Eventually(t, "all are delivered", time.Minute, func() bool { // a claim that is slow may end before it finds one
			claimed, err := store.Claim(t.Context(), dispatcher.ClaimRequest{
				Shares: []dispatcher.Share{{Topic: "orders", Limit: 10}}, Lease: time.Minute, MaxAttempts: 10, Keys: &dispatcher.KeyOrder{PerKey: 1},
			})
			if err != nil || len(claimed.Events) > 1 {
				t.Fatalf("claimed %d events of one key, %v", len(claimed.Events), err)
			}
			for _, e := range claimed.Events {
				numbers = append(numbers, e.AggregateSequence)
			}
			if lost, err := store.Ack(t.Context(), leasesOf(claimed.Events)); err != nil || len(lost) > 0 {
				t.Fatalf("lost %v, %v", lost, err)
			}
			return len(numbers) == n
		})
		return numbers
	}
	if got := deliver(served); got[0] != moved+1 {
		t.Fatalf("before the move the events %v were delivered", got)
	}
	conn, err := o.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, from := range []unserved.Name{{Namespace: "shop", Topic: "oders"}, {Namespace: "shpo", Topic: "orders"}} {
		change := unserved.Change{From: from, To: &unserved.Name{Namespace: "shop", Topic: "orders"}, Reason: "misspelt"}
		if n, err := unserved.Apply(t.Context(), conn.Conn(), pgtest.Schema, change, false); err != nil || n.Changed != moved {
			t.Fatalf("%d events of %s were moved, %v", n.Changed, from, err)
		}
	}
	if got, want := deliver(2*moved), []int64{1, 2, 3, 204, 205, 206}; !slices.Equal(got, want) {
		t.Errorf("the moved events were delivered as %v, want %v", got, want)
	}
}
