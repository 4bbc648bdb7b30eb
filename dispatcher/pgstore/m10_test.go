package pgstore_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
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
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := migrations.UpM10(t.Context(), conn.Conn(), pgtest.Schema, migrations.M10{Namespace: "shop", Topic: "m10"}); err != nil {
		t.Fatal(err)
	}
	return m10{o, o.Store("shop", uuid.New())}
}

// take claims with a dispatcher of one attempt.
func (m m10) take() []*dispatcher.Event {
	m.Helper()
	claimed, err := m.Claim(m.Context(), dispatcher.ClaimRequest{Shares: []dispatcher.Share{{Topic: "m10", Limit: 10}}, Lease: time.Minute, MaxAttempts: 1})
	if err != nil || len(claimed.Dead) > 0 {
		m.Fatalf("claimed, and marked %v dead: %v", claimed.Dead, err)
	}
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
		if len(events) != 1 {
			t.Fatalf("a dispatcher claimed %d events whose lease was over, want 1", len(events))
		}
		tokens = append(tokens, events[0].LeaseNumber)
		if n := len(m.work()); n > 0 {
			t.Fatalf("a worker claimed %d events, which a dispatcher has", n)
		}
		pgtest.Exec(m, `select m10_recovery.complete_outbox_event(1, 'w', true)`) // it has lost it
		m.again(over)
		tokens = append(tokens, m.work()...)
		lost, err := m.Ack(t.Context(), []dispatcher.Lease{events[0].Lease()})
		if err != nil || len(lost) != 1 {
			t.Errorf("an ack of an event that a worker has: lost %v, %v", lost, err)
		}
		m.again(over)
	}
	if len(tokens) != 9 || !slices.IsSorted(tokens) || len(slices.Compact(tokens)) != 9 {
		t.Errorf("tokens %v, want nine that rise", tokens)
	}
	if status := pgtest.Value[string](m.outbox, `select status from outbox.outbox_events`); status != "processing" {
		t.Errorf("it is %s; those who had lost it changed it", status)
	}
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
		if n := len(m.work()); n != 2 {
			t.Fatalf("the worker claimed %d events, want 2", n)
		}
		pgtest.Exec(m, `select m10_recovery.complete_outbox_event(seq, 'w', false, 'refused') from outbox.outbox_events`)
		m.again("")
		events := m.take()
		if len(events) != 2 {
			t.Fatalf("the dispatcher claimed %d events, want 2", len(events))
		}
		for _, e := range events {
			if e.MaxAttempts != 32767 {
				t.Errorf("the event has %d attempts", e.MaxAttempts)
			}
			if e.AggregateID == "42" && (e.Backoff == nil || e.Backoff.Delay(1, nil) != time.Second || e.Backoff.Delay(11, nil) != 1024*time.Second) {
				t.Errorf("the backoff of the event is %v", e.Backoff)
			}
		}
		m.again(`, locked_until = now() - interval '1 second'`)
	}
	if n := pgtest.Value[int](m.outbox, `select count(*) from outbox.outbox_dead_letters`); n > 0 {
		t.Errorf("%d events are dead, want 0", n)
	}
}
