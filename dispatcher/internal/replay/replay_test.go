package replay_test

import (
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
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
	r.checkProgress(r.begin(o), "0 of 1 done")
	if n := pgtest.Value[int](r, `select count(*) from outbox.outbox_events where status = 'dead'`); n != 1 {
		t.Error("to begin moved the row")
	}
	r.step(o, 10, 1)
	r.step(o, 10, 0)
	if after := pgtest.Value[string](r, kept); after != before {
		t.Errorf("the row was %s and is %s", before, after)
	}
	if row := pgtest.Value[string](r, `select (status, attempts, dead_reason, last_error, failures, locked_by, next_attempt_at <= now())::text from outbox.outbox_events`); row != "(pending,0,,,,,t)" {
		t.Errorf("the row is %s", row)
	}
	deadLetter := pgtest.Value[string](r, `select (resolution, resolved_by, resolution_reason, replay_id, resolved_at <= now(), error, failures, attempts)::text from outbox.outbox_dead_letters`)
	if want := `(replayed,alice,CHG-812,` + o.ID.String() + `,t,422,"[{""attempt"": 20}]",20)`; deadLetter != want {
		t.Errorf("the dead letter is %s, want %s", deadLetter, want)
	}
	r.checkProgress(r.observe(o), "1 of 1 done, 1 not delivered yet")
	r.deliver("true")
	p := r.observe(o)
	r.checkProgress(p, "1 of 1 done, 1 delivered")
	if p.FinishedAt.IsZero() || p.FinishedAt.Before(p.BeganAt) {
		t.Errorf("it began at %v and finished at %v", p.BeganAt, p.FinishedAt)
	}
}

// A discard resolves the dead letter and leaves the row dead, also when there is no row any more.
// CONTRACT: C-42
func TestDiscardLeavesTheRowDead(t *testing.T) {
	r := newRig(t)
	r.dead(3, 0)
	pgtest.Exec(r, `delete from outbox.outbox_events where seq = 2`)
	o := request()
	o.Action = config.ActionDiscard
	r.begin(o)
	r.step(o, 10, 3)
	p := r.observe(o)
	r.checkProgress(p, "3 of 3 done, 3 discarded")
	if p.FinishedAt.IsZero() {
		t.Error("it is not finished")
	}
	if n := pgtest.Value[int](r, `select count(*) from outbox.outbox_events where status = 'dead' and dead_reason is not null`); n != 2 {
		t.Errorf("%d dead rows, want 2", n)
	}
	if n := pgtest.Value[int](r, `select count(*) from outbox.outbox_dead_letters where resolution = 'discarded' and resolved_by = 'alice' and resolution_reason = 'CHG-812'`); n != 3 {
		t.Errorf("%d dead letters are discarded, want 3", n)
	}
}

// The set is fixed when the replay begins: open dead letters of the filter, the last of each event. What cannot be put
// back is skipped, and a dry run says the same and changes nothing.
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
		what   string
		change func(*config.ReplayRequest)
		want   string
	}{
		{"all", func(*config.ReplayRequest) {}, "2 of 8 done, 1 skipped: gone, 1 skipped: not_dead"},
		{"some topics", func(o *config.ReplayRequest) { o.Topics = []string{"bills", "other"} }, "0 of 1 done"},
		{"a filter", func(o *config.ReplayRequest) { o.Filter = config.DeadLetterFilter{ErrorContains: "Customer"} }, "0 of 1 done"},
		{"none", func(o *config.ReplayRequest) { o.Filter = config.DeadLetterFilter{Group: "00000000"} }, "0 of 0 done"},
		{"a discard, also of what was passed by", func(o *config.ReplayRequest) { o.Action = config.ActionDiscard }, "0 of 9 done"},
	} {
		o := request()
		test.change(&o)
		would, err := r.replays.DryRun(t.Context(), o)
		if err != nil {
			t.Fatalf("%s: %v", test.what, err)
		}
		if n := pgtest.Value[int](r, `select count(*) from outbox.outbox_replays where id = $1`, o.ID); n != 0 {
			t.Errorf("%s: the dry run added a replay", test.what)
		}
		r.checkProgress(would, test.want)
		r.checkProgress(r.begin(o), test.want)
		if finished := !r.begin(o).FinishedAt.IsZero(); finished != (test.what == "none") {
			t.Errorf("%s: finished is %v at the beginning", test.what, finished)
		}
	}
	// Dead letters that come later are not of the set.
	o := request()
	before := r.begin(o)
	r.dead(5, 0)
	r.step(o, 100, int(before.Waiting))
	r.checkProgress(r.begin(o), "8 of 8 done, 6 not delivered yet, 1 skipped: gone, 1 skipped: not_dead")
}

// An item is skipped, with the reason, when its dead letter or row changed after the replay began.
func TestSkippedItemsHaveReasons(t *testing.T) {
	r := newRig(t)
	r.dead(4, 0)
	o := request()
	r.begin(o)
	pgtest.Exec(r, `delete from outbox.outbox_events where seq = 1`)
	pgtest.Exec(r, `update outbox.outbox_events set status = 'pending', dead_reason = null where seq = 2`)
	pgtest.Exec(r, `update outbox.outbox_dead_letters set resolution = 'discarded', resolved_at = now(), resolved_by = 'bob' where seq = 3`)
	r.step(o, 10, 4)
	r.checkProgress(r.observe(o), "4 of 4 done, 1 not delivered yet, 1 skipped: already_resolved, 1 skipped: gone, 1 skipped: not_dead")
	if n := pgtest.Value[int](r, `select count(*) from outbox.outbox_dead_letters where resolution is null and seq in (1, 2)`); n != 2 {
		t.Errorf("%d dead letters of skipped items are open, want 2", n)
	}
	if by := pgtest.Value[string](r, `select resolved_by from outbox.outbox_dead_letters where seq = 3`); by != "bob" {
		t.Errorf("what bob resolved is now %s's", by)
	}
}

// The row says that an event is delivered, also when delivered rows are deleted at once. A later dead letter says that it is
// dead again, also when that one is resolved.
func TestOutcomesReadFromRows(t *testing.T) {
	r := newRig(t)
	r.dead(5, 0)
	o := request()
	r.begin(o)
	r.step(o, 10, 5)
	r.deliver("seq = 1")
	pgtest.Exec(r, `delete from outbox.outbox_events where seq = 2`)
	r.makeDead("seq in (3, 4)")
	r.checkProgress(r.observe(o), "5 of 5 done, 2 delivered, 2 dead again, 1 not delivered yet")
	again := request()
	r.begin(again)
	r.step(again, 10, 2)
	r.deliver("seq = 3")
	r.checkProgress(r.observe(again), "2 of 2 done, 1 delivered, 1 not delivered yet")
	r.checkProgress(r.observe(o), "5 of 5 done, 2 delivered, 2 dead again, 1 not delivered yet")

	late := request() // it looks when the second replay has delivered what is dead again
	r.dead(1, 0)
	late.Filter.Topic = "orders"
	r.begin(late)
	r.step(late, 10, 1)
	r.makeDead("seq = 6")
	again = request()
	r.begin(again)
	r.step(again, 10, 1)
	r.deliver("seq = 6")
	r.checkProgress(r.observe(late), "1 of 1 done, 1 dead again")
}

// A key's dead letters go lowest first, the next when the one before is delivered; when it is dead again the others are
// skipped. Events without a key go at once.
// CONTRACT: C-42, C-50
func TestKeysReplayedInOrder(t *testing.T) {
	r := newRig(t)
	r.dead(6, 2) // of key 1 the rows 1, 3 and 5, of key 0 the rows 2, 4 and 6
	r.dead(2, 0)
	o := request()
	r.begin(o)
	pending := func(want string) {
		t.Helper()
		if got := pgtest.Value[string](r, `select coalesce(string_agg(seq::text, ' ' order by seq), '') from outbox.outbox_events where status = 'pending'`); got != want {
			t.Errorf("the rows %s are pending, want %s", got, want)
		}
	}
	r.step(o, 100, 4)
	pending("1 2 7 8")
	r.step(o, 100, 0)
	r.deliver("seq = 1")
	r.makeDead("seq = 2")
	r.observe(o)
	r.step(o, 100, 1)
	pending("3 7 8")
	r.deliver("true")
	r.observe(o)
	r.step(o, 100, 1)
	pending("5")
	r.deliver("true")
	r.checkProgress(r.observe(o), "8 of 8 done, 5 delivered, 1 dead again, 2 skipped: earlier_dead")

	// What another replay has put back goes first too.
	other, later := request(), request()
	other.Filter.Topic, later.Filter.Topic = "orders", "orders"
	first := pgtest.Value[string](r, `select event_id::text from outbox.outbox_dead_letters where seq = 2 and resolution is null`)
	other.Filter.IDs = []string{first}
	r.begin(other)
	r.begin(later)
	r.step(other, 100, 1)
	r.step(later, 100, 1) // that is row 2, which it skips
	r.step(later, 100, 0)
	pending("2")
	r.deliver("true")
	r.step(later, 100, 1)
	pending("4")

	// Without order all go at once.
	free := request()
	free.AnyOrder = true
	r.dead(6, 2)
	r.checkProgress(r.begin(free), "0 of 7 done")
	r.step(free, 100, 7)
}

// A request is refused with everything that is wrong with it, before the database is queried.
func TestInvalidRequestRefused(t *testing.T) {
	t.Parallel()
	bad := config.ReplayRequest{
		Action: "edit", Reason: " ", RequestedBy: strings.Repeat("x", 1025), Rate: -1, Canary: -1, AbortAt: 101,
		Filter: config.DeadLetterFilter{Resolved: true, Group: "x"},
	}
	_, err := replay.New(nil, replay.Options{}).Begin(t.Context(), bad)
	if err == nil {
		t.Fatal("the request was accepted, want an error")
	}
	for _, want := range []string{"namespace: ", "action: ", "reason: ", "requestedBy: ", "rate: ", "canary: ", "abortAt: ", "filter: dead letters", "filter: group: "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %q", want, err)
		}
	}
	discard := request()
	discard.Action, discard.Canary = config.ActionDiscard, 1
	if err := replay.Validate(discard); err == nil || !strings.Contains(err.Error(), "a discard has no outcome") {
		t.Errorf("a discard with a canary: %v", err)
	}
}
