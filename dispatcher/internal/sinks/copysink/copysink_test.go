package copysink_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/copysink"
	"github.com/outbox-operator/outbox-operator/dispatcher/outbox"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// A dispatcher copies in order, and is done with what it copied; an event whose dedupe key another one has fails alone, and what is
// behind it in its key waits.
// CONTRACT: C-19, C-50, C-73
func TestDispatcherCopies(t *testing.T) {
	db := pgtest.Open(t, pgtest.Migrated(t))
	d, err := outbox.New(db.Pool, to("billing"), outbox.Config{
		Config: dispatcher.Config{Topics: []string{"orders"}, Ordering: dispatcher.OrderingKey, MaxAttempts: 1, Backoff: dispatcher.ExponentialBackoff(time.Millisecond, time.Millisecond)},
		Store:  pgstore.Options{Schema: pgtest.Schema, Namespace: "shop", Worker: uuid.New()},
	})
	need.OK(t, err)
	pgtest.Exec(db, `select outbox.enqueue('shop', 'billing', '{}', p_dedupe_key => 'k7')`)
	pgtest.Exec(db, `select outbox.enqueue('shop', 'orders', '{}', p_aggregate_id => 'a' || n % 4, p_dedupe_key => 'k' || n) from generate_series(1, 40) as n`)
	delivered, dead := 0, 0
	for range 20 {
		did, err := d.RunOnce(t.Context(), 40)
		need.OK(t, err)
		delivered, dead = delivered+did.Delivered, dead+did.Dead
		need.That(t, did.Lost == 0, "%d leases are lost", did.Lost)
	}
	need.That(t, delivered == 39 && dead == 1, "%d are delivered and %d dead, want 39 and 1", delivered, dead)
	pgtest.Want(db, "copy 23505 k7", "the dead letter is %s, want %s", `select concat_ws(' ', class, code, dedupe_key) from outbox.outbox_dead_letters as d join outbox.outbox_events as e on e.id = d.event_id
		where d.error like 'copy to billing: another event of one of these topics has the dedupe key;%'`)
	pgtest.Want(db, 39, "%d copies are in the order of their originals, want %d", `select count(*) from (select e.seq, row_number() over (partition by e.aggregate_id order by e.seq)
		= row_number() over (partition by e.aggregate_id order by o.seq) as in_order from outbox.outbox_events as e join outbox.outbox_events as o on o.id::text = e.headers ->> 'originalid') as e where in_order`)
}

// Alone it says where it belongs, and its probe needs a database.
func TestSinkBelongsToADispatcher(t *testing.T) {
	s := to("billing")
	need.Fails(t, "give it to outbox.New", "%v", errors.Join(s.Deliver(t.Context(), []*dispatcher.Event{{}})...))
	need.Fails(t, "", "%v", s.Probe(t.Context()))
}

func to(topic string) *copysink.Sink {
	return copysink.New(spec.Config{Dispatcher: spec.Dispatcher{Namespace: "shop", Topics: []string{"orders"},
		Sink: spec.Sink{Copy: &spec.CopySink{Topics: []string{topic}}, Timeout: spec.Duration(10 * time.Second)}}})
}
