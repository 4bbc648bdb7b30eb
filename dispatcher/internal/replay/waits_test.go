package replay_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// worker says that a dispatcher runs which serves topics.
func (r rig) worker(topics string, blocks bool) {
	r.Helper()
	pgtest.Exec(r, `insert into outbox.outbox_workers (worker, dispatcher, namespace, topics, blocks) values (gen_random_uuid(), 'd', 'shop', $1::text[], $2)`, topics, blocks)
}

// A replay reports what it waits for outside of its set: no dispatcher serves the topic, or an earlier event of the key is
// dead, or is not delivered yet. Run ends at its timeout, and leaves the replay as it is.
// CONTRACT: C-42
func TestProgressReportsCausesOfWaiting(t *testing.T) {
	for _, test := range []struct {
		what    string
		workers func(rig)
		before  string // what is done with the rows 1 and 2, the first of the keys 1 and 0, before
		items   int
		moved   int
		want    string // reason, count, seq of the event
	}{
		{"no dispatcher serves the topic", func(r rig) { r.worker("{bills}", false) }, "", 6, 2, "no_dispatcher 2 1"},
		{"dispatchers that are gone do not serve", func(r rig) {
			r.worker("{}", false)
			pgtest.Exec(r, `update outbox.outbox_workers set seen_at = now() - interval '2 minutes'`)
		}, "", 6, 2, "no_dispatcher 2 1"},
		{"what is served is only slow", func(r rig) { r.worker("{orders}", true) }, "", 6, 2, ""},
		{"a dead event outside the set blocks the key", func(r rig) { r.worker("{}", true) }, "", 5, 2, "earlier_dead 1 1"},
		{"a dead event outside the set is passed by", func(r rig) { r.worker("{}", false) }, "", 5, 2, ""},
		{"a live event outside the set goes first", func(r rig) { r.worker("{}", false) },
			`update outbox.outbox_events set status = 'pending', dead_reason = null where seq = 1`, 5, 1, "earlier_live 2 1"},
	} {
		t.Run(test.what, func(t *testing.T) {
			r := newRig(t)
			r.dead(6, 2)
			test.workers(r)
			if test.before != "" {
				pgtest.Exec(r, test.before)
			}
			o := request()
			if test.items == 5 {
				o.Filter.IDs = []string{"2", "3", "4", "5", "6"}
			}
			r.begin(o)
			r.step(o, 10, test.moved)
			p := r.observe(o)
			var got string
			for _, wait := range p.WaitingFor {
				got += strings.TrimSpace(pgtest.Value[string](r, `select concat_ws(' ', $1::text, $2::bigint, seq) from outbox.outbox_events where id = $3`, wait.Reason, wait.Count, wait.Event))
			}
			if got != test.want {
				t.Errorf("it waits for %q, want %q", got, test.want)
			}
			if again, err := r.replays.Progress(t.Context(), o.ID); err != nil || len(again.WaitingFor) != len(p.WaitingFor) {
				t.Errorf("the progress is %+v, %v", again, err)
			}

			left, err := r.replays.Run(t.Context(), o.ID, replay.RunOptions{Wait: true, Timeout: time.Nanosecond, Poll: time.Millisecond})
			if !errors.Is(err, replay.ErrTimeout) || len(p.WaitingFor) > 0 && !strings.Contains(err.Error(), p.WaitingFor[0].Event) {
				t.Errorf("it ended with %v", err)
			}
			if !left.FinishedAt.IsZero() || left.Stopped != "" || left.Pending+left.Waiting != int64(test.items) {
				t.Errorf("the wait has changed the replay: %v", left)
			}
		})
	}
}

// A replay is of a namespace: by its id, others neither see nor move it, nor begin one of the same id.
// CONTRACT: C-42
func TestReplayOfAnotherNamespace(t *testing.T) {
	r := newRig(t)
	r.dead(3, 0)
	o := request()
	r.begin(o)
	bills := replay.New(r.Pool, replay.Options{Namespace: "bills"})
	taken := request()
	taken.ID, taken.Namespace = o.ID, "bills"
	for what, err := range map[string]error{
		"progress": second(bills.Progress(t.Context(), o.ID)),
		"observe":  second(bills.Observe(t.Context(), o.ID)),
		"step":     second(bills.Step(t.Context(), o.ID, 1)),
		"run":      second(bills.Run(t.Context(), o.ID, replay.RunOptions{})),
		"stop":     second(bills.Stop(t.Context(), o.ID, "enough")),
		"begin":    second(r.replays.Begin(t.Context(), taken)),
	} {
		if !errors.Is(err, replay.ErrNamespace) || !strings.Contains(err.Error(), `of "shop", and not of "bills"; name the file of a dispatcher of "shop"`) {
			t.Errorf("%s: %v", what, err)
		}
	}
	shop := replay.New(r.Pool, replay.Options{Namespace: "shop"})
	p, err := shop.Progress(t.Context(), o.ID)
	if err != nil {
		t.Fatal(err)
	}
	r.checkProgress(p, "0 of 3 done")
	if _, err := bills.Progress(t.Context(), uuid.New()); !errors.Is(err, replay.ErrNotFound) {
		t.Errorf("of a replay that is not there: %v", err)
	}
}

// The counts of a replay stay when retention has removed its set. Outcomes that were never read are unknown.
// CONTRACT: C-42, C-60
func TestCountsKeptWhenSetRemoved(t *testing.T) {
	r := newRig(t)
	r.dead(6, 0)
	pgtest.Exec(r, `delete from outbox.outbox_events where seq = 1`)
	watched, left := request(), request()
	watched.Filter.IDs, left.Filter.IDs = []string{"1", "2", "3", "4"}, []string{"5", "6"}
	for _, o := range []config.ReplayRequest{watched, left} {
		r.begin(o)
	}
	r.step(watched, 2, 2)
	r.deliver("seq = 2")
	r.makeDead("seq = 3")
	if _, err := r.replays.Stop(t.Context(), watched.ID, "enough"); err != nil {
		t.Fatal(err)
	}
	const want = "4 of 4 done, 1 delivered, 1 dead again, 1 skipped: gone, 1 skipped: stopped; stopped: enough"
	before := r.observe(watched)
	r.checkProgress(before, want)
	r.step(left, 2, 2)
	r.deliver("seq = 5")
	r.observe(left)
	pgtest.Exec(r, `delete from outbox.outbox_replay_items`)
	for range 2 {
		after := r.observe(watched)
		r.checkProgress(after, want)
		if after.FinishedAt.IsZero() || !after.FinishedAt.Equal(before.FinishedAt) {
			t.Errorf("it finished at %v, and now at %v", before.FinishedAt, after.FinishedAt)
		}
		r.checkProgress(r.observe(left), "2 of 2 done, 2 with an unknown outcome")
	}

	discarded := request()
	discarded.Action = config.ActionDiscard
	r.begin(discarded)
	r.step(discarded, 10, 3)
	r.observe(discarded)
	pgtest.Exec(r, `delete from outbox.outbox_replay_items`)
	r.checkProgress(r.observe(discarded), "3 of 3 done, 3 discarded")
}
