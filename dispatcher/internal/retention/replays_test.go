package retention_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/retention"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// replay begins a replay of open dead letters, and returns its id.
func (o outbox) replay(deadLetters ...int64) (id uuid.UUID) {
	o.Helper()
	id = uuid.New()
	need.Must(o, pgtest.Value[bool](o, `select outbox.outbox_replay_begin($1, $2, 'replay', 'CHG-812', 'ada', '{}', 100, 0, 50, $3)`, id, o.namespace, deadLetters),
		"the replay was there")
	return id
}

func (o outbox) state(replay uuid.UUID) string {
	o.Helper()
	return pgtest.Value[string](o, `select concat_ws(' ', 'waiting', waiting, 'pending', pending, 'delivered', delivered, 'dead', dead_again, 'gone', gone,
		'stopped', stopped, case when finished_at is not null then 'finished' end) from outbox.outbox_replays where id = $1`, replay)
}

// A sweep reads the outcomes of replays that no process watches, before it removes the rows that have them: what was delivered
// counts as delivered, and a row that was dead again, was discarded by another and is old counts as dead again. Dead letters
// whose outcome was not read stay.
// CONTRACT: C-42, C-60
func TestOutcomesAreReadBeforeRowsAreRemoved(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	var ids []uuid.UUID
	var deadLetters []int64
	for range 4 {
		id := o.add("dead", 90, "")
		ids, deadLetters = append(ids, id), append(deadLetters, o.deadLetter(id, 90, -1))
	}
	replay := o.replay(deadLetters[:3]...)
	pgtest.Exec(o, `select outbox.outbox_replay_step($1, 3)`, replay)
	pgtest.Exec(o, `update outbox.outbox_events set status = 'delivered', updated_at = now() - interval '8 days' where id = $1`, ids[0])
	pgtest.Exec(o, `update outbox.outbox_events set status = 'dead', dead_reason = 'poison_message' where id = $1`, ids[1])
	o.deadLetter(ids[1], 80, 70) // again, and discarded by another
	pgtest.Exec(o, `update outbox.outbox_dead_letters set resolved_at = now() - interval '75 days' where replay_id = $1`, replay)
	// The process of a run that is under way: the outcomes are not read yet.
	hold := pgtest.Begin(o, `select from outbox.outbox_replays for update`)
	o.sweep(o.sweeper(nil))
	need.OK(t, hold.Rollback(t.Context()))
	need.Want(t, "waiting 0 pending 3 delivered 0 dead 0 gone 0 stopped 0", "while another runs it: %s, want %s", o.state(replay))
	got := o.deadLetters(ids[1])
	need.That(t, got == "replayed discarded" && o.row(ids[1]), "of an event whose outcome was not read %q stay, and its row: %v", got, o.row(ids[1]))
	o.sweep(o.sweeper(nil))
	need.Want(t, "waiting 0 pending 1 delivered 1 dead 1 gone 0 stopped 0", "after a sweep: %s, want %s", o.state(replay))
	got = o.deadLetters(ids[1])
	need.That(t, got == "" && !o.row(ids[1]), "of an event whose outcome is known %q stay, and its row: %v", got, o.row(ids[1]))
}

// A run reads the outcomes of a replay in portions, so that it ends before its statement's time does: until all are read, the others
// count as open, and the replay is not finished.
// CONTRACT: C-60
func TestOutcomesAreReadInParts(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	replay := o.replay(o.deadLetter(o.add("dead", 10, ""), 10, -1))
	pgtest.Exec(o, `select outbox.outbox_replay_step($1, 1)`, replay)
	pgtest.Exec(o, `update outbox.outbox_events set status = 'delivered'`)
	// More of them, whose rows are gone since they were delivered.
	pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts, resolution, resolved_at, resolved_by, replay_id, replay_state)
		select gen_random_uuid(), 'shop', 'orders', 'poison_message', 1, 'replayed', now() - interval '10 days', 'ada', $1, 'requeued' from generate_series(1, 5002)`, replay)
	pgtest.Exec(o, `update outbox.outbox_replays set pending = 5003, requeued = 5003 where id = $1`, replay)
	pgtest.Exec(o, `create table portions (read bigint)`)
	pgtest.Exec(o, `create function portion() returns trigger language plpgsql security definer as $$
		begin insert into public.portions select old.pending - new.pending where old.pending > new.pending;
			perform pg_sleep(2) where old.pending = 5003; -- the first portion takes the time of a run
			return null; end $$`)
	pgtest.Exec(o, `create trigger portion after update on outbox.outbox_replays for each row execute function portion()`)
	o.sweep(o.sweeper(nil))
	need.Want(t, "waiting 0 pending 3003 delivered 2000 dead 0 gone 0 stopped 0", "after a run whose time is over: %s, want %s", o.state(replay))
	wait(t, "all is read", func() bool { // by one run, unless a portion takes about a second
		o.sweep(o.sweeper(nil))
		return o.state(replay) == "waiting 0 pending 0 delivered 5003 dead 0 gone 0 stopped 0 finished"
	})
	pgtest.Want(o, "2000 2000 1003", "read in portions of %s, want 2000 2000 1003", `select string_agg(read::text, ' ' order by read desc) from portions`)
}

// A replay whose outcomes cannot be read in time keeps no row but its own: all other steps of the run are
// done, and the run reports it.
// CONTRACT: C-60
func TestUnreadOutcomesKeepNoOthers(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	event := o.add("dead", 90, "")
	replay := o.replay(o.deadLetter(event, 90, -1))
	pgtest.Exec(o, `select outbox.outbox_replay_step($1, 1)`, replay)
	pgtest.Exec(o, `update outbox.outbox_events set status = 'dead', dead_reason = 'poison_message' where id = $1`, event)
	pgtest.Exec(o, `update outbox.outbox_dead_letters set resolved_at = now() - interval '75 days' where replay_id = $1`, replay)
	delivered, dead := o.add("delivered", 8, ""), o.add("dead", 90, "")
	o.deadLetter(dead, 90, 80)
	// What it would write is locked for longer than a statement waits.
	hold := pgtest.Begin(o, `select from outbox.outbox_dead_letters where replay_id = $1 for update`, replay)
	if ran, err := o.sweeper(nil).Sweep(t.Context()); !ran || err == nil || !strings.Contains(err.Error(), "run `dispatcher dead operations --operation ID` for each replay that is open") {
		t.Errorf("a run that cannot read an outcome: %v, %v", ran, err)
	}
	need.That(t, !o.row(delivered) && !o.row(dead) && o.row(event) && o.deadLetters(event) == "replayed",
		"of a delivered, a resolved and the replay's row %v, %v, %v are there, and of the last one the dead letters %q; want the last one alone", o.row(delivered), o.row(dead), o.row(event), o.deadLetters(event))
	need.OK(t, hold.Rollback(t.Context()))
	o.sweep(o.sweeper(nil))
	need.Want(t, "waiting 0 pending 0 delivered 0 dead 1 gone 0 stopped 0 finished", "after the next run: %s, want %s", o.state(replay))
}

// Days of the journal that are not removed in time end no run, and the next one removes them all.
// CONTRACT: C-60
func TestASlowJournalEndsNoRun(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	pgtest.Exec(o, `select outbox.outbox_journal_set(true)`)
	pgtest.Exec(o, `insert into outbox.outbox_journal (at, lsn, xid, operation, login) select now() - interval '8 days', '0/0', pg_current_xact_id(), 'insert', 'me' from generate_series(1, 20001)`)
	pgtest.Exec(o, `create function outbox.slow() returns trigger language plpgsql as $$ begin raise exception sqlstate '57014'; end $$;
		create trigger slow before delete on outbox.outbox_journal_default for each row execute function outbox.slow()`)
	s := o.sweeper(nil)
	if ran, err := s.Sweep(t.Context()); !ran || err == nil || !strings.Contains(err.Error(), "days of the journal were not made or not removed: ") {
		t.Errorf("a run that cannot remove days of the journal: %v, %v", ran, err)
	}
	ran, err := s.Sweep(t.Context())
	need.That(t, !ran && err == nil, "a run before the next one is due: %v, %v", ran, err)
	pgtest.Exec(o, `drop trigger slow on outbox.outbox_journal_default`)
	o.sweep(s)
	left := pgtest.Value[int](o, `select count(*) from outbox.outbox_journal_default`)
	need.That(t, left == 0, "%d old records are left after the next run", left)
}

// Dead rows that one statement does not manage are removed one by one, and one that stays too slow keeps no others. When
// all are too slow the run fails, and not before it has looked at the journal.
// CONTRACT: C-60
func TestSlowDeadRowsKeepNoOthers(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	var dead []uuid.UUID
	for range 4 {
		dead = append(dead, o.add("dead", 90, ""))
		o.deadLetter(dead[len(dead)-1], 90, 80)
	}
	const slow = `create or replace function outbox.slow() returns trigger language plpgsql as $$ begin
			if (select count(*) > 1 or bool_or(id::text like '%s') from gone) then raise exception sqlstate '57014'; end if;
			return null;
		end $$`
	pgtest.Exec(o, fmt.Sprintf(slow, dead[1]))
	pgtest.Exec(o, `create trigger slow after delete on outbox.outbox_events referencing old table as gone for each statement execute function outbox.slow()`)
	s := o.sweeper(nil)
	ran, err := s.Sweep(t.Context())
	need.That(t, ran && err != nil && strings.Contains(err.Error(), "57014"), "a run with one row that is too slow: %v, %v", ran, err)
	need.That(t, !o.row(dead[0]) && o.row(dead[1]) && !o.row(dead[2]) && !o.row(dead[3]), "want all dead rows removed but the slow one")

	for range 3 {
		o.deadLetter(o.add("dead", 90, ""), 90, 80)
	}
	pgtest.Exec(o, fmt.Sprintf(slow, "%"))
	pgtest.Exec(o, `insert into outbox.outbox_journal (at, lsn, xid, operation, login) values (now() - interval '8 days', '0/0', pg_current_xact_id(), 'insert', 'me')`)
	pgtest.Exec(o, `update outbox.outbox_sweeps set next_run = now()`)
	ran, err = s.Sweep(t.Context())
	need.That(t, !ran && err != nil && strings.Contains(err.Error(), "57014"), "a run whose rows are all too slow: %v, %v", ran, err)
	need.That(t, pgtest.Value[int](o, `select count(*) from outbox.outbox_journal where operation = 'insert'`) == 0, "a run whose rows are too slow does not look at the journal")
}

// A replay that no process runs is given up after the retention of dead letters, and does not keep its dead letters from
// expiring. An operation goes 90 days after its end.
// CONTRACT: C-60
func TestOldOperationsGo(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.serve(false)
	elsewhere := o
	elsewhere.namespace = "other"
	begin := func(o outbox) (uuid.UUID, uuid.UUID) {
		event := o.add("dead", 90, "")
		return event, o.replay(o.deadLetter(event, 90, -1))
	}
	claimed, running := begin(o)
	expires, left := begin(o)
	_, old := begin(o)
	_, recent := begin(o)
	_, others := begin(elsewhere)
	pgtest.Exec(o, `update outbox.outbox_replays set seen_at = now() - interval '31 days' where id = $1`, left)
	for id, days := range map[uuid.UUID]int{old: 91, others: 91, recent: 89} {
		pgtest.Exec(o, `select outbox.outbox_replay_stop($1, 'enough')`, id)
		pgtest.Exec(o, `update outbox.outbox_replays set finished_at = now() - make_interval(days => $2) where id = $1`, id, days)
	}
	o.sweep(o.sweeper(func(opts *retention.Options) {
		opts.Namespace, opts.Name, opts.DeadResolved, opts.DeadUnresolved = o.namespace, "dispatcher shop", 30*day, 60*day
	}))
	for _, test := range []struct {
		what  string
		id    uuid.UUID
		there int
	}{{"one that runs", running, 1}, {"one that was left", left, 1}, {"an old one", old, 0}, {"a recent one", recent, 1}, {"one of another namespace", others, 1}} {
		need.Want(t, test.there, "%s: %d rows, want %d", pgtest.Value[int](o, `select count(*) from outbox.outbox_replays where id = $1`, test.id), test.what)
	}
	if got := o.state(running); got != "waiting 1 pending 0 delivered 0 dead 0 gone 0 stopped 0" || o.deadLetters(claimed) != "open" {
		t.Errorf("one that runs is %s, its dead letter %s", got, o.deadLetters(claimed))
	}
	if got := o.state(left); got != "waiting 0 pending 0 delivered 0 dead 0 gone 0 stopped 1 finished" || o.deadLetters(expires) != "expired" {
		t.Errorf("one that was left is %s, its dead letter %s", got, o.deadLetters(expires))
	}
	// A retention of hours does not shorten that of operations.
	o.sweep(o.sweeper(func(opts *retention.Options) { opts.DeadResolved = time.Hour }))
	pgtest.Want(o, 1, "%d are there, want the recent one alone", `select count(*) from outbox.outbox_replays where id in ($1, $2)`, recent, others)
}

// An operation stays as long as the journal has records of it: without it, verify would call its replays made by hand.
// CONTRACT: C-60, C-61
func TestOperationsStayAsLongAsTheJournal(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	id := o.replay(o.deadLetter(o.add("dead", 90, ""), 90, -1))
	pgtest.Exec(o, `select outbox.outbox_replay_stop($1, 'enough')`, id)
	pgtest.Exec(o, `update outbox.outbox_replays set finished_at = now() - interval '200 days' where id = $1`, id)
	pgtest.Exec(o, `select outbox.outbox_journal_set(true, '1 year')`)
	for _, test := range []struct{ since, there int }{{300, 1}, {100, 0}} {
		pgtest.Exec(o, `update outbox.outbox_journal_settings set since = now() - make_interval(days => $1)`, test.since)
		o.sweep(o.sweeper(nil))
		need.Want(t, test.there, "with a journal of %d days %d operations of 200 days are there, want %d", pgtest.Value[int](o, `select count(*) from outbox.outbox_replays where id = $1`, id), test.since)
	}
}

// A shorter retention is noted before its first run, which is due in hours: a replay whose rows are removed by then takes them for
// delivered. A longer one is not.
// CONTRACT: C-42
func TestShorterRetentionIsNotedAtOnce(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.sweep(o.sweeper(nil)) // the next run is due in hours
	event := o.add("dead", 1, "")
	replay := o.replay(o.deadLetter(event, 1, -1))
	pgtest.Exec(o, `select outbox.outbox_replay_step($1, 1)`, replay)
	run := func(delivered time.Duration, want string) {
		t.Helper()
		checked := make(chan struct{}, 1)
		s := o.sweeper(func(opts *retention.Options) {
			opts.Delivered, opts.PollEvery = delivered, time.Millisecond
			opts.Ready = func() bool {
				select {
				case checked <- struct{}{}:
				default:
				}
				return true
			}
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); s.Run(ctx) }()
		for range 3 { // so that one round is over
			<-checked
		}
		stop()
		<-ended
		need.Want(t, want, "with a retention of %s, %s is noted, want %s", pgtest.Value[string](o, `select delivered_after::text from outbox.outbox_sweeps where name = 'retention'`), delivered)
	}
	run(8*day, "168:00:00")
	run(0, "00:00:00")
	pgtest.Exec(o, `delete from outbox.outbox_events where id = $1`, event) // at its ack
	pgtest.Exec(o, `select outbox.outbox_replay_observe($1)`, replay)
	if got, want := o.state(replay), "waiting 0 pending 0 delivered 1 dead 0 gone 0 stopped 0 finished"; got != want {
		t.Errorf("the replay is %s, want %s", got, want)
	}
}
