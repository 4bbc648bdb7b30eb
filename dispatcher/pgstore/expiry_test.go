package pgstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// An event without a time of its own has the dispatcher's, from when it was due first, and says so to its consumer. One with a time
// has that alone. Events expire in portions of the claim's size, and a lease that ends after the time is the last.
// CONTRACT: C-18
func TestClaimsExpireWhatIsLate(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	store := pgstore.New(o.stores, pgstore.Options{Schema: pgtest.Schema, Namespace: "shop", Worker: uuid.New(), ExpireAfter: time.Hour})
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, payload, created_at, next_attempt_at, first_due_at, expires_at, dedupe_key)
		select gen_random_uuid(), 'shop', 'orders', '{}', now() - interval '2 hours', now() - interval '3 hours' + created * interval '1 second', first_due_at, expires_at, name
		from (values (1, 'old', null, null), (2, 'old and delayed', now() - interval '1 minute', null), (3, 'its own time', null, now() + interval '1 hour'),
			(4, 'new and late', now(), now() - interval '1 second')) as e (created, name, first_due_at, expires_at)`)
	claimed, err := store.Claim(t.Context(), share("orders", 10))
	need.OK(t, err)
	names := func(events []*dispatcher.Event) (all string) {
		for _, e := range events {
			all += e.DedupeKey + ", "
		}
		return all
	}
	need.Want(t, "old and delayed, its own time, ", "claimed %q, want %q", names(claimed.Events))
	need.Want(t, "old, new and late, ", "expired %q, want %q", names(claimed.Expired))
	expires := pgtest.Value[time.Time](o, `select first_due_at + interval '1 hour' from outbox.outbox_events where dedupe_key = 'old and delayed'`)
	need.That(t, claimed.Events[0].Expires.Equal(expires), "it expires at %v, want %v", claimed.Events[0].Expires, expires)
	pgtest.Want(o, true, "the row does not say when it expired: %v", `select expires_at = created_at + interval '1 hour' from outbox.outbox_events where dedupe_key = 'old'`)

	// A crash, and the time is over when another one comes.
	pgtest.Exec(o, `update outbox.outbox_events set locked_until = now() - interval '1 second', expires_at = now() - interval '1 second' where dedupe_key = 'its own time'`)
	claimed, err = store.Claim(t.Context(), share("orders", 10))
	need.That(t, err == nil && names(claimed.Expired) == "its own time, " && claimed.Leased() == 0, "%+v, %v", claimed, err)
	pgtest.Want(o, "expired 1 f", "the row is %s, want %s", `select concat_ws(' ', status, attempts, live, locked_by) from outbox.outbox_events where dedupe_key = 'its own time'`)

	// A claim makes no more of them expired than it may take rows, and what comes behind is found.
	pgtest.Exec(o, `select outbox.enqueue('shop', 'many', '{}', p_aggregate_id => 'a' || n % 2, p_options => case when n <= 250 then '{"expires": "0s"}' else '{}' end::jsonb) from generate_series(1, 251) as n`)
	for _, keys := range []*dispatcher.KeyOrder{nil, {PerKey: 3, BlockOnDead: true}} {
		req := share("many", 100)
		if req.Keys = keys; keys != nil {
			req.Shares[0].Limit = 10
		}
		before, n := pgtest.Value[int](o, `select count(*) from outbox.outbox_events where status = 'expired' and topic = 'many'`), 0
		claimed, err = store.Claim(t.Context(), req)
		n = len(claimed.Expired)
		need.That(t, err == nil && n == req.Shares[0].Limit && claimed.Leased() == 0, "%d of %d rows expired, and %d are leased, %v", n, req.Shares[0].Limit, claimed.Leased(), err)
		pgtest.Want(o, before+n, "%d rows are expired, want %d", `select count(*) from outbox.outbox_events where status = 'expired' and topic = 'many'`)
	}
	for range 250 {
		if claimed, err = store.Claim(t.Context(), share("many", 100)); err != nil || claimed.Leased() > 0 {
			break
		}
	}
	need.That(t, err == nil && claimed.Leased() == 1, "behind what expired %d rows are leased, %v", claimed.Leased(), err)
	pgtest.Want(o, "0 250", "there are %s dead letters and expired rows, want %s", `select concat_ws(' ', (select count(*) from outbox.outbox_dead_letters), count(*)) from outbox.outbox_events where topic = 'many' and status = 'expired'`)
}

// What expires between two events of a key leaves them in order.
// CONTRACT: C-18, C-50
func TestExpiryKeepsOrder(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	store := o.Store("shop", uuid.New())
	need.OK(t, need.Err(store.Claim(t.Context(), inOrder("orders", 1, 1)))) // from here on it remembers
	pgtest.Exec(o, `select outbox.enqueue('shop', 'orders', '{}', p_aggregate_id => case when n <= 3 then 'a' else 'b' || n end, p_delay => case n when 1 then interval '1 hour' else '0' end) from generate_series(1, 100) as n`)
	for _, want := range []string{"97 and 0", "0 and 0", "0 and 1", "0 and 0"} {
		pgstore.Recall(store)
		claimed, err := store.Claim(t.Context(), inOrder("orders", 100, 9))
		need.OK(t, err)
		need.Want(t, want, "%s are leased and expired, want %s", fmt.Sprintf("%d and %d", claimed.Leased(), len(claimed.Expired)))
		if want == "0 and 0" { // it knows by now which numbers are settled
			pgtest.Exec(o, `update outbox.outbox_events set expires_at = now() where seq = 2`)
		}
	}
}

// A replay of a dead event whose time is over is refused, unless it gives a new one.
// CONTRACT: C-18, C-42
func TestReplaysNeedATimeThatIsNotOver(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	store := o.Store("shop", uuid.New())
	pgtest.Exec(o, `select outbox.enqueue('shop', 'orders', '{}', p_options => '{"expires": "1h"}')`)
	claimed, err := store.Claim(t.Context(), share("orders", 1))
	need.Must(t, err == nil && claimed.Leased() == 1, "%+v, %v", claimed, err)
	need.OK(t, need.Err(store.Nack(t.Context(), []dispatcher.Failure{{Lease: claimed.Events[0].Lease(), Error: "no", Reason: dispatcher.ReasonPermanentFailure}})))
	pgtest.Exec(o, `update outbox.outbox_events set expires_at = now() - interval '1 hour'`)
	const begin = `select outbox.outbox_replay_begin('00000000-0000-0000-0000-000000000001', 'shop', 'replay', 'CHG', 'ada', $1::jsonb, 1, 0, 50, array(select id from outbox.outbox_dead_letters))`
	need.Fails(t, "the time of 1 of the events is over", "%v", need.Err(o.Exec(t.Context(), begin, `{}`)))
	pgtest.Exec(o, begin, `{"expires": "1800s"}`)
	pgtest.Exec(o, `select outbox.outbox_replay_step(id, 10) from outbox.outbox_replays`)
	pgtest.Want(o, "pending 00:30:00", "the row is %s, want %s", `select concat_ws(' ', status, expires_at - first_due_at) from outbox.outbox_events`)
	pgtest.Exec(o, `update outbox.outbox_events set expires_at = now()`)
	need.OK(t, need.Err(store.Claim(t.Context(), share("orders", 1))))
	pgtest.Exec(o, `select outbox.outbox_replay_observe(id) from outbox.outbox_replays`)
	pgtest.Want(o, "1 gone, finished, outcomes ''", "the replay has %s", `select format('%s gone, %s, outcomes ''%s''', gone, case when finished_at is not null then 'finished' end, outcomes) from outbox.outbox_replays`)
}

// A claim reads no more, and writes no more, where events have a time that is not over.
// CONTRACT: C-18
func TestExpiryCostsClaimsNothing(t *testing.T) {
	t.Parallel()
	p := newPlanned(t, pgtest.Migrated(t))
	p.fill(1000, "none")
	pgtest.Exec(p, `alter table outbox.outbox_events alter column expires_at set default now() + interval '1 hour'`)
	p.fill(1000, "timed")
	pgtest.Exec(p, `vacuum analyze outbox.outbox_events`)
	p.prepare()
	none, timed := p.claim("none", 100), p.claim("timed", 100)
	t.Logf("a claim of 100 reads %d buffers and %d rows, with a time %d and %d", none.buffers(), none.looked(), timed.buffers(), timed.looked())
	// A row that is claimed takes one page more where its own has no room: rows are wider by 8 bytes.
	need.That(t, timed.looked() == none.looked() && timed.buffers() <= none.buffers()+60, "a claim reads %d buffers and %d rows, with a time %d and %d", none.buffers(), none.looked(), timed.buffers(), timed.looked())
}
