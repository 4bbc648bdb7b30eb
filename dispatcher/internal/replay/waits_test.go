package replay_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/replay"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// worker says that a dispatcher in order per key runs which serves topics, and why it has paused some, as JSON.
func (r rig) worker(topics string, blocks, paused bool, pausedTopics string) {
	r.Helper()
	pgtest.Exec(r, `insert into outbox.outbox_workers (worker, dispatcher, namespace, topics, ordered, blocks, paused, paused_topics)
		values (gen_random_uuid(), 'd', 'shop', $1::text[], true, $2, $3, $4::jsonb)`, topics, blocks, paused, pausedTopics)
}

// A replay reports what it waits for, when no outcome is new: no dispatcher serves the topic, or it is paused, or has paused
// the topic; an event is under way, or behind another one of its key. Run ends at its timeout, and leaves the replay as it is.
// CONTRACT: C-42
func TestProgressReportsCausesOfWaiting(t *testing.T) {
	serves := func(r rig) { r.worker("{orders}", false, false, "{}") }
	for _, test := range []struct {
		what    string
		workers func(rig)
		after   string // what is done when they are put back
		want    string // reason, count, seq of the event, detail
	}{
		{"no dispatcher serves the topic", func(r rig) { r.worker("{bills}", false, false, "{}") }, "", "no_dispatcher 5 2"},
		{"dispatchers that are gone do not serve", func(r rig) {
			serves(r)
			pgtest.Exec(r, `update outbox.outbox_workers set seen_at = now() - interval '2 minutes'`)
		}, "", "no_dispatcher 5 2"},
		{"the dispatcher is paused", func(r rig) { r.worker("{}", false, true, "{}") }, "", "paused 5 2"},
		{"one of two is paused", func(r rig) { r.worker("{}", false, true, "{}"); serves(r) }, "", ""},
		{"the topic is paused", func(r rig) { r.worker("{}", false, false, `{"orders": "503", "bills": "404"}`) }, "", "topic_paused 5 2 503"},
		{"all topics are paused", func(r rig) { r.worker("{}", false, false, `{"": "503"}`) }, "", "topic_paused 5 2 503"},
		{"another topic is paused", func(r rig) { r.worker("{}", false, false, `{"bills": "404"}`) }, "", ""},
		{"what is served is only slow", serves, "", ""},
		{"some are under way", serves, `update outbox.outbox_events set status = 'processing', locked_by = gen_random_uuid(), locked_until = now() where seq < 4 and status = 'pending'`, "delivering 2 2"},
		{"a dead event outside the set blocks the key", func(r rig) { r.worker("{}", true, false, "{}") }, "", "earlier_dead 2 1"},
		{"a live event outside the set goes first", serves, `update outbox.outbox_events set status = 'pending', dead_reason = null where seq = 1`, "earlier_live 2 1"},
		{"without order nothing waits for it", serves, `update outbox.outbox_events set status = 'pending', dead_reason = null where seq = 1;
			update outbox.outbox_workers set ordered = false`, ""},
	} {
		t.Run(test.what, func(t *testing.T) {
			r := newRig(t)
			r.dead(6, 2)
			test.workers(r)
			o := request()
			o.Filter.IDs = []string{"2", "3", "4", "5", "6"}
			r.begin(o)
			r.step(o, 10, 5)
			if test.after != "" {
				pgtest.Exec(r, test.after)
			}
			p := r.observe(o)
			var got string
			for _, wait := range p.WaitingFor {
				got += strings.TrimSpace(pgtest.Value[string](r, `select concat_ws(' ', $1::text, $2::bigint, seq, $4::text) from outbox.outbox_events where id = $3`, wait.Reason, wait.Count, wait.Event, wait.Detail))
			}
			if got != test.want {
				t.Errorf("it waits for %q, want %q", got, test.want)
			}
			if again, err := r.replays.Progress(t.Context(), o.ID); err != nil || len(again.WaitingFor) != len(p.WaitingFor) {
				t.Errorf("the progress is %+v, %v", again, err)
			}
			if known := !p.EndsAt.IsZero(); known != (test.want == "" || strings.HasPrefix(test.want, "delivering")) {
				t.Errorf("its end is known: %v", p.EndsAt)
			}

			left, err := r.replays.Run(t.Context(), o.ID, replay.RunOptions{Wait: true, Timeout: time.Nanosecond, Poll: time.Millisecond})
			if !errors.Is(err, replay.ErrTimeout) || len(p.WaitingFor) > 0 && !strings.Contains(err.Error(), p.WaitingFor[0].String()) {
				t.Errorf("it ended with %v", err)
			}
			if !left.FinishedAt.IsZero() || left.Stopped != "" || left.Pending != 5 {
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
