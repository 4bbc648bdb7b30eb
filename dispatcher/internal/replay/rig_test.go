package replay_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// waitTimeout bounds what must happen soon. Only a test that fails waits for it.
const waitTimeout = 2 * time.Minute

// rig is an outbox in a database of its own, and its replays, which have the rights of a replay login and no others.
type rig struct {
	*testing.T
	*pgxpool.Pool // of the owner
	replays       *replay.Replays
}

func newRig(t *testing.T) rig {
	t.Helper()
	t.Parallel()
	r := rig{T: t, Pool: pgtest.Pool(t, pgtest.Migrated(t))}
	// Each time that a row goes back to pending is written down.
	pgtest.Exec(r, `create table public.requeued (id uuid, reason text);
		create function public.note() returns trigger language plpgsql security definer as
			$$ begin insert into public.requeued values (new.id); return new; end $$;
		create trigger note after update on outbox.outbox_events for each row
			when (old.status = 'dead' and new.status = 'pending') execute function public.note()`)
	r.replays = replay.New(pgtest.Pool(t, pgtest.Login(t, r.Pool, migrations.ReplayLogin)), replay.Options{})
	return r
}

// dead commits n dead events of topic orders with their dead letters, of keys "0", "1" and so on in turn, or of none.
func (r rig) dead(n, keys int) {
	r.Helper()
	pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, dedupe_key, payload, attempts, lease, status, dead_reason, last_error, failures)
		select gen_random_uuid(), 'shop', 'orders', case when $2::integer > 0 then n % $2::integer end, 'key ' || gen_random_uuid(), '{}', 20, n, 'dead', 'max_retries_exceeded', '422', '[{"attempt": 20}]'
		from generate_series(1, $1::integer) as n`, n, keys)
	pgtest.Exec(r, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, seq, key_hash, reason, attempts, error, failures)
		select id, namespace, topic, seq, key_hash, dead_reason, attempts, last_error, failures
		from outbox.outbox_events where status = 'dead' and id not in (select event_id from outbox.outbox_dead_letters) order by seq`)
}

// makeDead makes the pending rows of a condition dead again, as an engine would.
func (r rig) makeDead(where string) {
	r.Helper()
	pgtest.Exec(r, `with failed as (
			update outbox.outbox_events set status = 'dead', dead_reason = 'permanent_failure', last_error = 'again' where status = 'pending' and `+where+` returning *
		)
		insert into outbox.outbox_dead_letters (event_id, namespace, topic, seq, key_hash, reason, attempts, error)
		select id, namespace, topic, seq, key_hash, dead_reason, attempts, last_error from failed order by seq`)
}

// deliver makes the pending rows of a condition delivered.
func (r rig) deliver(where string) {
	r.Helper()
	pgtest.Exec(r, `update outbox.outbox_events set status = 'delivered' where status = 'pending' and `+where)
}

// request returns a valid request that chooses all.
func request() config.ReplayRequest {
	return config.ReplayRequest{ID: uuid.New(), Namespace: "shop", Action: config.ActionReplay, Reason: "CHG-812", RequestedBy: "alice", Rate: config.MaxReplayRate}
}

func (r rig) begin(o config.ReplayRequest) status.Replay {
	r.Helper()
	p, err := r.replays.Begin(r.Context(), o)
	if err != nil {
		r.Fatal(err)
	}
	return p
}

// step checks how many had their turn.
func (r rig) step(o config.ReplayRequest, limit, want int) {
	r.Helper()
	if done, err := r.replays.Step(r.Context(), o.ID, limit); err != nil || done != want {
		r.Fatalf("a step of %d did %d, %v; want %d", limit, done, err, want)
	}
}

func (r rig) observe(o config.ReplayRequest) status.Replay {
	r.Helper()
	p, err := r.replays.Observe(r.Context(), o.ID)
	if err != nil {
		r.Fatal(err)
	}
	return p
}

// checkProgress checks the progress in its one line.
func (r rig) checkProgress(p status.Replay, want string) {
	r.Helper()
	if p.String() != want {
		r.Errorf("the progress is %q, want %q", p, want)
	}
}

// requeued is how often rows went back, and how many rows.
func (r rig) requeued() (times, rows int) {
	r.Helper()
	if err := r.Pool.QueryRow(r.Context(), `select count(*), count(distinct id) from public.requeued`).Scan(&times, &rows); err != nil {
		r.Fatal(err)
	}
	return times, rows
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	pgtest.Eventually(t, what, waitTimeout, holds)
}
