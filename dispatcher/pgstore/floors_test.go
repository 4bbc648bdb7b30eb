package pgstore

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

func newFloors() *floors { return &floors{byTopic: map[string]floor{}} }

func rowAt(p position) row {
	return row{event: &dispatcher.Event{ID: p.id}, due: microsOf(p.at)}
}

// A topic's next claim starts behind a full share or the last row that bytes had room for, a little
// before now after one that took all that was due, and where it did before when nothing is known.
func TestNextClaimStartsBehindTheLast(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Microsecond)
	last := position{now.Add(-time.Hour), uuid.New()}
	before := position{now.Add(-2 * time.Hour), uuid.New()}
	rows := func(reasons ...dispatcher.DeadReason) []row {
		rows := make([]row, len(reasons))
		for i, reason := range reasons {
			rows[i] = rowAt(position{last.at, uuid.New()})
			rows[i].dead = reason
		}
		rows[len(rows)-1].event.ID = last.id
		return rows
	}
	const dead = dispatcher.ReasonProcessingTimeout
	caughtUp := position{at: now.Add(-slack)}
	for name, test := range map[string]struct {
		got  found
		want position
	}{
		"nothing":                  {found{}, caughtUp},
		"full":                     {found{rows: rows("", "", "")}, last},
		"full, some dead":          {found{rows: rows("", dead, "")}, last},
		"short":                    {found{rows: rows("", "")}, caughtUp},
		"short, some dead":         {found{rows: rows(dead, "")}, caughtUp},
		"cut by bytes":             {found{rows: rows("", ""), cut: true}, last},
		"full, another was cut":    {found{rows: rows("", "", ""), cut: true}, last},
		"cut by bytes, some dead":  {found{rows: rows("", dead), cut: true}, before},
		"cut by bytes, none of it": {found{cut: true}, before},
	} {
		f := newFloors()
		f.byTopic["a"] = floor{position: before, since: time.Now()}
		test.got.at = now
		f.update(f.next([]string{"a"}), []dispatcher.Share{{Topic: "a", Limit: 3}}, test.got)
		s := f.next([]string{"a", "never seen"})
		if !s.times[0].Equal(test.want.at) || s.ids[0].Bytes != test.want.id || !s.floored || !s.pass {
			t.Errorf("%s: starts at %v %v, floored %t, pass %t, want %+v", name, s.times[0], s.ids[0], s.floored, s.pass, test.want)
		}
		if !s.times[1].IsZero() || s.ids[1].Bytes != uuid.Nil || !s.ids[1].Valid {
			t.Errorf("a topic that was never seen starts at %v %v", s.times[1], s.ids[1])
		}
	}
}

// However busy a topic is, its claims start at the front now and then, and so does one that is requested for
// because the last one found nothing.
func TestFullPasses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFloors()
		shares := []dispatcher.Share{{Topic: "a", Limit: 1}}
		claim := func() (pass bool) {
			s := f.next([]string{"a"})
			f.update(s, shares, found{at: time.Now(), rows: []row{rowAt(position{at: time.Now()})}})
			return s.pass
		}
		if !claim() || claim() {
			t.Error("the first claim starts at the front, and the second behind it")
		}
		passes := 0
		for range 100 {
			time.Sleep(fullPass / 10)
			if claim() {
				passes++
			}
		}
		if passes != 10 {
			t.Errorf("%d of 100 claims started at the front, want each tenth", passes)
		}
		if !f.lift(shares) || !claim() || claim() {
			t.Error("a lifted floor makes one claim start at the front")
		}
	})
}

// Passes that cost much become rare, and no pass is put off for longer than a few seconds.
func TestFullPassesHaveABudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFloors()
		shares := []dispatcher.Share{{Topic: "a", Limit: 1}}
		began, spent := time.Now(), time.Duration(0)
		claim := func(cost time.Duration) {
			s := f.next([]string{"a"})
			if s.pass {
				time.Sleep(cost)
				spent += cost
			}
			f.update(s, shares, found{at: time.Now()})
		}
		for time.Since(began) < 10*time.Minute {
			claim(200 * time.Millisecond)
			time.Sleep(2 * time.Millisecond)
			f.lift(shares) // as after a claim that found nothing
		}
		if share := spent.Seconds() / time.Since(began).Seconds(); share < 0.04 || share > 0.06 {
			t.Errorf("full passes took %.0f%% of the time, want 5%%", 100*share)
		}

		time.Sleep(time.Minute)
		f.lift(shares)
		claim(time.Hour) // the server stood still
		waited := time.Now()
		for !f.lift(shares) {
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(waited); took > 6*time.Second {
			t.Errorf("after a pass that took an hour the next one came after %v, want a few seconds", took)
		}
	})
}

// A pass that took long among others that did not, since the machine was busy, puts the next one off no
// longer than they do.
func TestOneSlowPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFloors()
		for n := range 20 {
			began := time.Now()
			s := f.next([]string{"a"})
			for ; !s.pass; s = f.next([]string{"a"}) {
				time.Sleep(10 * time.Millisecond)
			}
			if took := time.Since(began); took > 2*fullPass {
				t.Errorf("pass %d came after %v", n, took)
			}
			took := time.Millisecond
			if n%3 == 2 {
				took = 300 * time.Millisecond
			}
			time.Sleep(took)
			f.update(s, []dispatcher.Share{{Topic: "a", Limit: 1}}, found{at: time.Now()})
		}
	})
}

// On a server that is slow with every claim, passes are as frequent: what waits for one would wait longer
// the busier the server is.
func TestFullPassesOnASlowServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFloors()
		passes := 0
		for range 1000 {
			s := f.next([]string{"a"})
			if s.pass {
				passes++
			}
			time.Sleep(100 * time.Millisecond) // each claim, pass or not
			f.update(s, []dispatcher.Share{{Topic: "a", Limit: 1}}, found{at: time.Now()})
		}
		if passes < 180 {
			t.Errorf("%d passes in 100 s, want one each 500 ms or so", passes)
		}
	})
}

// The shares of several topics are kept apart.
func TestFloorsByTopic(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Microsecond)
	f := newFloors()
	last := position{now.Add(-time.Minute), uuid.New()}
	third := rowAt(last)
	third.share = 2
	topics := []string{"a", "b", "c", "d"}
	f.update(f.next(topics), []dispatcher.Share{{Topic: "a", Limit: 2}, {Topic: "b", Limit: 5}, {Topic: "c", Limit: 1}, {Topic: "d"}},
		found{at: now, rows: []row{rowAt(position{at: now.Add(-time.Hour)}), rowAt(last), third}})
	times := f.next(topics).times
	if !times[0].Equal(last.at) || !times[1].Equal(now.Add(-slack)) || !times[2].Equal(last.at) || !times[3].IsZero() {
		t.Errorf("floors are %v", times)
	}
}
