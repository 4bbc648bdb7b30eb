package replay_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// A row goes back with its id, its dedupe key and its lease, and with its whole retry budget. The dead letter says what
// had failed, who replayed it, why and by which replay.
// CONTRACT: C-26, C-27, C-41, C-42
// REQUIREMENT: STORAGE-19, STORAGE-44, STORAGE-45
func TestReplayPutsTheRowBack(t *testing.T) {
	r := newRig(t)
	r.dead(1, 0)
	const kept = `select (id, seq, dedupe_key, lease)::text from outbox.outbox_events`
	before := pgtest.Value[string](r, kept)
	o := request()
	r.checkProgress(r.begin(o), "0 of 1 put back, 0 delivered")
	pgtest.Want[int](r, 1, "to begin moved the row", `select count(*) from outbox.outbox_events where status = 'dead'`)
	r.step(o, 10, 1)
	r.step(o, 10, 0)
	need.Want(t, before, "the row was %s and is %s", pgtest.Value[string](r, kept), before)
	pgtest.Want(r, "(pending,0,,,,,t,t)", "the row is %s", `select (status, attempts, dead_reason, last_error, failures, locked_by, next_attempt_at <= now(), first_due_at = next_attempt_at)::text from outbox.outbox_events`)
	deadLetter := pgtest.Value[string](r, `select (resolution, resolved_by, resolution_reason, replay_id, resolved_at <= now(), error, failures, attempts)::text from outbox.outbox_dead_letters`)
	want := `(replayed,alice,CHG-812,` + o.ID.String() + `,t,422,"[{""attempt"": 20}]",20)`
	need.Want(t, want, "the dead letter is %s, want %s", deadLetter)
	r.checkProgress(r.observe(o), "1 of 1 put back, 0 delivered, 1 not delivered yet")
	r.deliver("true")
	p := r.observe(o)
	r.checkProgress(p, "1 of 1 put back, 1 delivered")
	need.That(t, !p.FinishedAt.IsZero() && p.FinishedAt >= p.StartedAt, "it began at %v and finished at %v", p.StartedAt.Time(), p.FinishedAt.Time())
}

// A discard resolves the dead letter and leaves the row dead, also when there is no row any more.
// CONTRACT: C-42
func TestDiscardLeavesTheRowDead(t *testing.T) {
	r := newRig(t)
	r.dead(3, 0)
	pgtest.Exec(r, `delete from outbox.outbox_events where seq = 2`)
	o := request()
	o.Action = replay.ActionDiscard
	p := r.begin(o)
	r.checkProgress(p, "3 of 3 discarded")
	r.step(o, 10, 0)
	need.That(t, !p.FinishedAt.IsZero(), "it is not finished")
	pgtest.Want(r, 2, "%d dead rows, want 2", `select count(*) from outbox.outbox_events where status = 'dead' and dead_reason is not null`)
	pgtest.Want(r, 3, "%d dead letters are discarded, want 3", `select count(*) from outbox.outbox_dead_letters where resolution = 'discarded' and resolved_by = 'alice' and resolution_reason = 'CHG-812'`)
}

// A dry run counts what an operation would do and what it would leave, and changes nothing. The set is fixed when the
// operation begins: dead letters of the filter, the last of each event. What cannot be put back is found at its turn.
// CONTRACT: C-42
func TestDryRunCountsWhatBeginFixes(t *testing.T) {
	r := newRig(t)
	r.dead(10, 0)
	pgtest.Exec(r, `update outbox.outbox_events set topic = 'bills' where seq = 1`)
	pgtest.Exec(r, `update outbox.outbox_dead_letters set topic = 'bills' where seq = 1`)
	pgtest.Exec(r, `update outbox.outbox_dead_letters set namespace = 'else' where seq = 2`)
	pgtest.Exec(r, `update outbox.outbox_dead_letters set error = 'no such customer' where seq = 3`)
	pgtest.Exec(r, `delete from outbox.outbox_events where seq = 4`)
	pgtest.Exec(r, `update outbox.outbox_events set status = 'pending', dead_reason = null where seq = 5`)
	pgtest.Exec(r, `update outbox.outbox_dead_letters set resolution = 'discarded', resolved_at = now(), resolved_by = 'bob' where seq = 6`)
	pgtest.Exec(r, `update outbox.outbox_events set status = 'pending', dead_reason = null where seq = 7`) // by hand, and it is dead again
	r.makeDead("seq = 7")
	for _, test := range []struct {
		what             string
		change           func(*replay.Request)
		would, begun, at string // its end
	}{
		{"all", func(*replay.Request) {}, "0 of 8 put back, 0 delivered, 1 skipped: gone, 1 skipped: not_dead", "0 of 8 put back, 0 delivered", "stopped: 0 of 8 put back, 0 delivered, 8 skipped: stopped; enough"},
		{"some topics", func(o *replay.Request) { o.Topics = []string{"bills", "other"} }, "0 of 1 put back, 0 delivered", "0 of 1 put back, 0 delivered", "stopped: 0 of 1 put back, 0 delivered, 1 skipped: stopped; enough"},
		{"a filter", func(o *replay.Request) { o.Filter = deadletters.Filter{ErrorContains: "Customer"} }, "0 of 1 put back, 0 delivered", "0 of 1 put back, 0 delivered", "stopped: 0 of 1 put back, 0 delivered, 1 skipped: stopped; enough"},
		{"the first three", func(o *replay.Request) { o.Limit = 3 }, "0 of 3 put back, 0 delivered, 1 skipped: gone", "0 of 3 put back, 0 delivered", "stopped: 0 of 3 put back, 0 delivered, 3 skipped: stopped; enough"},
		{"none", func(o *replay.Request) { o.Filter = deadletters.Filter{Group: "00000000"} }, "0 of 0 put back, 0 delivered", "0 of 0 put back, 0 delivered", "0 of 0 put back, 0 delivered"},
		{"a reopen", func(o *replay.Request) { o.Action = replay.ActionReopen }, "0 of 1 reopened", "1 of 1 reopened", "1 of 1 reopened"},
		{"a discard, also of what was passed by", func(o *replay.Request) { o.Action = replay.ActionDiscard }, "0 of 10 discarded", "10 of 10 discarded", "10 of 10 discarded"},
	} {
		o := request()
		test.change(&o)
		would, err := r.replays.DryRun(t.Context(), o)
		need.Must(t, err == nil, "%s: %v", test.what, err)
		need.That(t, pgtest.Value[int](r, `select count(*) from outbox.outbox_replays where id = $1`, o.ID) == 0, "%s: the dry run added a replay", test.what)
		r.checkProgress(would, test.would)
		r.checkProgress(r.begin(o), test.begun)
		finished := !r.begin(o).FinishedAt.IsZero()
		need.Want(t, test.would == "0 of 0 put back, 0 delivered" || o.Action != replay.ActionReplay, "%s: finished is %v at the beginning", finished, test.what)
		p, err := r.replays.Stop(t.Context(), o.ID, "enough")
		need.OK(t, err)
		r.checkProgress(p, test.at)
	}
	// Dead letters that come later are not of the set.
	r.dead(2, 0)
	o := request()
	r.begin(o)
	r.dead(5, 0)
	r.step(o, 100, 2)
	r.checkProgress(r.begin(o), "2 of 2 put back, 0 delivered, 2 not delivered yet")
}

// A dead letter whose row or state a person changed after the replay began is left as it is, with the reason.
func TestSkippedDeadLettersHaveReasons(t *testing.T) {
	r := newRig(t)
	r.dead(5, 0)
	o := request()
	r.begin(o)
	pgtest.Exec(r, `delete from outbox.outbox_events where seq = 1`)
	pgtest.Exec(r, `update outbox.outbox_events set status = 'pending', dead_reason = null where seq = 2`)
	pgtest.Exec(r, `update outbox.outbox_dead_letters set resolution = 'discarded', resolved_at = now(), resolved_by = 'bob' where seq = 3`)
	pgtest.Exec(r, `update outbox.outbox_events set status = 'pending', dead_reason = null where seq = 4`)
	r.makeDead("seq = 4")
	r.step(o, 10, 5)
	r.checkProgress(r.observe(o), "1 of 5 put back, 0 delivered, 1 not delivered yet, 1 skipped: gone, 3 skipped: not_dead")
	pgtest.Want(r, 4, "%d dead letters of skipped ones are open, want 4", `select count(*) from outbox.outbox_dead_letters where resolution is null and seq in (1, 2, 4)`)
	pgtest.Want(r, "bob", "what bob resolved is now %s's", `select resolved_by from outbox.outbox_dead_letters where seq = 3`)
}

// The row says that an event is delivered. A later dead letter says that it is dead again, also when that one is resolved. A
// row that is missing was delivered only when a sweep of retention may have removed it.
// CONTRACT: C-42
func TestOutcomesReadFromRows(t *testing.T) {
	r := newRig(t)
	r.dead(6, 0)
	o := request()
	o.AbortAt = 100
	r.begin(o)
	r.step(o, 10, 6)
	r.deliver("seq = 1")
	pgtest.Exec(r, `delete from outbox.outbox_events where seq = 2`)
	r.makeDead("seq in (3, 4)")
	r.checkProgress(r.observe(o), "5 of 6 put back, 1 delivered, 2 dead again, 2 not delivered yet, 1 skipped: gone")
	again := request()
	r.begin(again)
	r.step(again, 10, 2)
	r.deliver("seq = 3")
	r.checkProgress(r.observe(again), "2 of 2 put back, 1 delivered, 1 not delivered yet")
	r.checkProgress(r.observe(o), "5 of 6 put back, 1 delivered, 2 dead again, 2 not delivered yet, 1 skipped: gone")

	pgtest.Exec(r, `insert into outbox.outbox_sweeps (name, namespace, delivered_after) values ('shop', 'shop', '1 hour'), ('bills', 'bills', '0')`)
	pgtest.Exec(r, `delete from outbox.outbox_events where seq = 5`)
	r.checkProgress(r.observe(o), "4 of 6 put back, 1 delivered, 2 dead again, 1 not delivered yet, 2 skipped: gone")
	pgtest.Exec(r, `update outbox.outbox_sweeps set delivered_after = '0' where name = 'shop'`)
	pgtest.Exec(r, `delete from outbox.outbox_events where seq = 6`)
	p := r.observe(o)
	r.checkProgress(p, "4 of 6 put back, 2 delivered, 2 dead again, 2 skipped: gone")
	need.That(t, !p.FinishedAt.IsZero(), "each has its outcome, and it is not finished")

	late := request() // it looks when the second replay has delivered what is dead again
	r.dead(1, 0)
	r.begin(late)
	r.step(late, 10, 1)
	r.makeDead("seq = 7")
	again = request()
	r.begin(again)
	r.step(again, 10, 1)
	r.deliver("seq = 7")
	r.checkProgress(r.observe(late), "1 of 1 put back, 0 delivered, 1 dead again")
}

// Dead letters go back in the order of insertion, of all keys. Of two replays at once the one whose next one is later
// waits, where they have keys of the same topic, while the other one is run.
// CONTRACT: C-42, C-50
func TestReplaysAtOnceKeepTheOrderOfKeys(t *testing.T) {
	r := newRig(t)
	r.dead(8, 2)
	odd, even, bills := request(), request(), request()
	odd.Filter.IDs, even.Filter.IDs = []string{"1", "3", "7"}, []string{"2", "4", "5", "6", "8"}
	pgtest.Exec(r, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, seq, key_hash, reason, attempts)
		select id, namespace, 'bills', seq, 42, 'poison_message', 1 from outbox.outbox_events where seq = 8`)
	pgtest.Exec(r, `delete from outbox.outbox_dead_letters where id = 8`)
	bills.Filter.Topic = "bills"
	for _, o := range []replay.Request{even, odd, bills} {
		r.begin(o)
	}
	pending := func(want string) {
		t.Helper()
		pgtest.Want[string](r, want, "the rows %s are pending, want %s", `select coalesce(string_agg(seq::text, ' ' order by seq), '') from outbox.outbox_events where status = 'pending'`)
	}
	r.step(even, 100, 0)
	p, err := r.replays.Progress(t.Context(), even.ID)
	need.That(t, err == nil && len(p.WaitingFor) == 1 && p.WaitingFor[0].Event == odd.ID.String(), "it waits for %+v, %v, want the other replay", p.WaitingFor, err)
	r.step(bills, 100, 1) // keys of another topic
	pending("8")
	r.step(odd, 1, 1)
	r.step(even, 100, 1)
	pending("1 2 8")
	r.step(odd, 100, 1)
	pending("1 2 3 8")
	r.step(even, 100, 3)
	pending("1 2 3 4 5 6 8")
	r.step(odd, 100, 1)

	// One that no process has run for a minute, or that was stopped, holds up none.
	r.dead(4, 2)
	first, last := request(), request()
	first.Filter.IDs, last.Filter.IDs = []string{"10", "11"}, []string{"12", "13"}
	r.begin(first)
	r.begin(last)
	r.step(last, 1, 0)
	pgtest.Exec(r, `update outbox.outbox_replays set seen_at = now() + interval '2 hours' where id = $1`, first.ID) // by a clock that was ahead
	r.step(last, 1, 1)
	r.step(first, 1, 1)
	r.step(last, 1, 0)
	need.OK(t, need.Err(r.replays.Stop(t.Context(), first.ID, "enough")))
	r.step(last, 1, 1)
}

// A reopen undoes a discard while the event is dead. Another replay then takes the dead letter.
// CONTRACT: C-42
func TestReopenUndoesADiscard(t *testing.T) {
	r := newRig(t)
	r.dead(4, 0)
	discard, reopen := request(), request()
	discard.Action, reopen.Action = replay.ActionDiscard, replay.ActionReopen
	r.checkProgress(r.begin(discard), "4 of 4 discarded")
	pgtest.Exec(r, `delete from outbox.outbox_events where seq = 2`)
	pgtest.Exec(r, `update outbox.outbox_events set status = 'pending', dead_reason = null where seq = 3`)
	r.makeDead("seq = 3") // its discarded dead letter is not the last one
	pgtest.Exec(r, `update outbox.outbox_events set status = 'pending', dead_reason = null where seq = 4`)
	reopen.Filter.IDs = []string{"1", "2", "3", "4"}
	would, err := r.replays.DryRun(t.Context(), reopen)
	need.OK(t, err)
	r.checkProgress(would, "0 of 3 reopened, 1 skipped: gone, 1 skipped: not_dead")
	r.checkProgress(r.begin(reopen), "1 of 3 reopened, 2 skipped: claimed")
	pgtest.Want(r, "(,,,,t)", "the reopened dead letter is %s", `select (resolution, resolved_at, resolved_by, resolution_reason, replay_id = $1)::text from outbox.outbox_dead_letters where id = 1`, reopen.ID)
	o := request()
	o.Filter.IDs = []string{"1"}
	r.begin(o)
	r.step(o, 10, 1)
}

// A request is refused with everything that is wrong with it, before the database is queried.
func TestInvalidRequestRefused(t *testing.T) {
	t.Parallel()
	bad := replay.Request{
		Action: "edit", Reason: " ", RequestedBy: strings.Repeat("x", 1025), Rate: -1, Canary: -1, AbortAt: 101,
		Filter: deadletters.Filter{Resolved: true, Group: "x"},
	}
	_, err := replay.New(nil, replay.Options{}).Begin(t.Context(), bad)
	need.Must(t, err != nil, "the request was accepted, want an error")
	for _, want := range []string{"namespace: ", "action: ", "reason: ", "requestedBy: ", "rate: ", "canary: ", "abortAt: ", "filter: resolved", "filter: group: "} {
		need.That(t, strings.Contains(err.Error(), want), "%q is not in %q", want, err)
	}
	discard := request()
	discard.Action, discard.Canary = replay.ActionDiscard, 1
	need.Fails(t, "a discard has no outcome", "a discard with a canary: %v", discard.Validate())
}

func TestMain(m *testing.M) { pgtest.Main(m) }

// waitTimeout bounds what must happen soon. Only a test that fails waits for it.
const waitTimeout = need.Wait

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
func request() replay.Request {
	return replay.Request{ID: uuid.New(), Namespace: "shop", Action: replay.ActionReplay, Reason: "CHG-812", RequestedBy: "alice", Rate: replay.MaxRate}
}

func (r rig) begin(o replay.Request) status.Replay {
	r.Helper()
	p, err := r.replays.Begin(r.Context(), o)
	need.OK(r, err)
	return p
}

// step checks how many had their turn.
func (r rig) step(o replay.Request, limit, want int) {
	r.Helper()
	done, err := r.replays.Step(r.Context(), o.ID, limit)
	need.Must(r, err == nil && done == want, "a step of %d did %d, %v; want %d", limit, done, err, want)
}

func (r rig) observe(o replay.Request) status.Replay {
	r.Helper()
	p, err := r.replays.Observe(r.Context(), o.ID)
	need.OK(r, err)
	return p
}

// checkProgress checks the progress in its one line.
func (r rig) checkProgress(p status.Replay, want string) {
	r.Helper()
	need.That(r, p.String() == want, "the progress is %q, want %q", p, want)
}

// requeued is how often rows went back, and how many rows.
func (r rig) requeued() (times, rows int) {
	r.Helper()
	need.OK(r, r.Pool.QueryRow(r.Context(), `select count(*), count(distinct id) from public.requeued`).Scan(&times, &rows))
	return times, rows
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	pgtest.Eventually(t, what, holds)
}

// A replay works however the driver sends its statements: what is set for PgBouncer before 1.21, too.
func TestEveryModeOfTheDriver(t *testing.T) {
	pgtest.EachMode(t, func(t *testing.T, mode pgtest.Mode) {
		r := newRig(t)
		r.dead(3, 2)
		replays := replay.New(pgtest.Pool(t, mode.In(r.Pool.Config().ConnString())), replay.Options{})
		o := request()
		o.Canary, o.Topics = 2, []string{"orders"}
		o.Filter = deadletters.Filter{IDs: []string{"1", "2", "3", "5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11"}}
		missing, err := replays.Missing(t.Context(), o)
		need.Must(t, err == nil && slices.Equal(missing, o.Filter.IDs[3:]), "missing: %v, %v", missing, err)
		p, err := replays.DryRun(t.Context(), o)
		need.Must(t, err == nil && p.Matched == 3, "dry run: %v, %v", p, err)
		p, err = replays.Begin(t.Context(), o)
		need.Must(t, err == nil && p.Matched == 3, "begin: %v, %v", p, err)
		done, err := replays.Step(t.Context(), o.ID, 10)
		need.Must(t, err == nil && done != 0, "step: %d, %v", done, err)
		r.makeDead("true")
		p, err = replays.Observe(t.Context(), o.ID)
		need.Must(t, err == nil && p.DeadAgain != 0, "observe: %v, %v", p, err)
		p, err = replays.Stop(t.Context(), o.ID, "enough")
		need.Must(t, err == nil && p.Waiting == 0, "stop: %v, %v", p, err)
		p, err = replays.Progress(t.Context(), o.ID)
		need.Must(t, err == nil && !p.FinishedAt.IsZero(), "progress: %v, %v", p, err)
	})
}
