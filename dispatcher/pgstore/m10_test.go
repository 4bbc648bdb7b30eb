package pgstore_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/retention"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/unserved"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// m10 is an outbox with the functions of M10, and a store.
type m10 struct {
	outbox
	dispatcher.Store
}

func newM10(t *testing.T) m10 {
	t.Helper()
	o := newOutbox(t, pgtest.Migrated(t))
	conn, err := o.Acquire(t.Context())
	need.OK(t, err)
	defer conn.Release()
	need.OK(t, need.Err(migrations.UpM10(t.Context(), conn.Conn(), pgtest.Schema, migrations.M10{Namespace: "shop", Topic: "m10"})))
	return m10{o, o.Store("shop", uuid.New())}
}

// take claims with a dispatcher of one attempt.
func (m m10) take() []*dispatcher.Event {
	m.Helper()
	claimed, err := m.Claim(m.Context(), dispatcher.ClaimRequest{Shares: []dispatcher.Share{{Topic: "m10", Limit: 10}}, Lease: time.Minute, MaxAttempts: 1})
	need.Must(m, err == nil && len(claimed.Dead) == 0, "claimed, and marked %v dead: %v", claimed.Dead, err)
	return claimed.Events
}

// work claims with a worker, and returns the tokens of what it has.
func (m m10) work() (tokens []int64) {
	m.Helper()
	pgtest.Exec(m, `select m10_recovery.claim_outbox_events('w')`)
	return pgtest.Value[[]int64](m.outbox, `select coalesce(array_agg(lease order by seq), '{}') from outbox.outbox_events where locked_by = (select worker from m10_recovery.processors)`)
}

func (m m10) again(change string) {
	m.Helper()
	pgtest.Exec(m, `update outbox.outbox_events set next_attempt_at = now()`+change)
}

// Dispatchers and M10 workers take events from each other, with tokens that rise, and never have one together. Whoever
// has lost a lease writes nothing.
// CONTRACT: C-20, C-23, C-27, C-90
// REQUIREMENT: M10-11, M10-12
func TestM10AndDispatcherShareATable(t *testing.T) {
	t.Parallel()
	m := newM10(t)
	pgtest.Exec(m, `select m10_recovery.publish_outbox('order', '42', 'http:call', '{}')`)
	const over = `, locked_until = now() - interval '1 microsecond'`
	var tokens []int64
	for range 3 {
		tokens = append(tokens, m.work()...)
		if events := m.take(); len(events) > 0 {
			t.Fatalf("a dispatcher claimed %v, which a worker has", events)
		}
		m.again(over)
		events := m.take()
		need.Must(t, len(events) == 1, "a dispatcher claimed %d events whose lease was over, want 1", len(events))
		tokens = append(tokens, events[0].LeaseNumber)
		n := len(m.work())
		need.Must(t, n == 0, "a worker claimed %d events, which a dispatcher has", n)
		pgtest.Exec(m, `select m10_recovery.complete_outbox_event(1, 'w', true)`) // it has lost it
		m.again(over)
		tokens = append(tokens, m.work()...)
		lost, err := m.Ack(t.Context(), []dispatcher.Lease{events[0].Lease()})
		need.That(t, err == nil && len(lost) == 1, "an ack of an event that a worker has: lost %v, %v", lost, err)
		m.again(over)
	}
	need.That(t, len(tokens) == 9 && slices.IsSorted(tokens) && len(slices.Compact(tokens)) == 9, "tokens %v, want nine that rise", tokens)
	pgtest.Want(m.outbox, "processing", "it is %s; those who had lost it changed it", `select status from outbox.outbox_events`)
}

// A dispatcher marks no event dead that a worker publishes or retries, whatever its own limit is, and waits as M10 does.
// CONTRACT: C-25, C-90
// REQUIREMENT: M10-6, M10-15
func TestM10EventsAreNotMarkedDead(t *testing.T) {
	t.Parallel()
	m := newM10(t)
	pgtest.Exec(m, `select m10_recovery.publish_outbox('order', '42', 'http:call', '{}')`)
	pgtest.Exec(m, `select * from outbox.enqueue('shop', 'm10', '{}', p_options => '{"maxAttempts": 2}')`)
	for range 5 {
		n := len(m.work())
		need.Must(t, n == 2, "the worker claimed %d events, want 2", n)
		pgtest.Exec(m, `select m10_recovery.complete_outbox_event(seq, 'w', false, 'refused') from outbox.outbox_events`)
		m.again("")
		events := m.take()
		need.Must(t, len(events) == 2, "the dispatcher claimed %d events, want 2", len(events))
		for _, e := range events {
			need.Want(t, 32767, "the event has %d attempts", e.MaxAttempts)
			need.That(t, e.AggregateID != "42" || (e.Backoff != nil && e.Backoff.Delay(1, nil) == time.Second && e.Backoff.Delay(11, nil) == 1024*time.Second),
				"the backoff of the event is %v", e.Backoff)
		}
		m.again(`, locked_until = now() - interval '1 second'`)
	}
	n := pgtest.Value[int](m.outbox, `select count(*) from outbox.outbox_dead_letters`)
	need.That(t, n == 0, "%d events are dead, want 0", n)
}

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
		pgtest.Eventually(t, "all are delivered", func() bool { // a claim that is slow may end before it finds one
			claimed, err := store.Claim(t.Context(), inOrder("orders", 10, 1))
			need.Must(t, err == nil && len(claimed.Events) <= 1, "claimed %d events of one key, %v", len(claimed.Events), err)
			for _, e := range claimed.Events {
				numbers = append(numbers, e.AggregateSequence)
			}
			acked(t, store, claimed.Events)
			return len(numbers) == n
		})
		return numbers
	}
	got := deliver(served)
	need.Must(t, got[0] == moved+1, "before the move the events %v were delivered", got)
	conn, err := o.Acquire(t.Context())
	need.OK(t, err)
	defer conn.Release()
	for _, from := range []unserved.Name{{Namespace: "shop", Topic: "oders"}, {Namespace: "shpo", Topic: "orders"}} {
		change := unserved.Change{From: from, To: &unserved.Name{Namespace: "shop", Topic: "orders"}, Reason: "misspelt"}
		if n, err := unserved.Apply(t.Context(), conn.Conn(), pgtest.Schema, change, false); err != nil || n.Changed != moved {
			t.Fatalf("%d events of %s were moved, %v", n.Changed, from, err)
		}
	}
	got, want := deliver(2*moved), []int64{1, 2, 3, 204, 205, 206}
	need.WantAll(t, want, "the moved events were delivered as %v, want %v", got)
}

// Claims read no more during a sweep that removes what was delivered a moment ago than without one.
// CONTRACT: C-60
func TestClaimsDuringASweepReadNoMore(t *testing.T) {
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
			n := claimed.written()
			need.Must(t, n == batch, "claimed %d rows", n)
			read[sweeps] += claimed.buffers()
			p.ack("orders")
			if !sweeps {
				continue
			}
			pgtest.Exec(p, `update outbox.outbox_sweeps set next_run = now()`)
			ran, err := s.Sweep(t.Context())
			need.Must(t, err == nil && ran, "the sweep ran: %v, %v", ran, err)
			n = pgtest.Value[int](p.outbox, `select count(*) from outbox.outbox_events where status = 'delivered'`)
			need.Must(t, n == 0, "%d delivered rows are there after a sweep", n)
		}
	}
	t.Logf("buffers of a claim of %d: %d without a sweep, %d during one", batch, read[false]/rounds, read[true]/rounds)
	need.That(t, read[true] <= read[false]*11/10, "claims read %d buffers during a sweep, and %d without one", read[true], read[false])
}
