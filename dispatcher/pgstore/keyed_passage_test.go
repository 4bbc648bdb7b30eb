package pgstore

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

func newKeyed() *keyed { return &keyed{byTopic: map[string]*passage{}} }

// reach is what a statement tells of its first range.
func reach(at time.Time) (t told) {
	t.Reached = append(t.Reached, struct {
		Range  int        `json:"range"`
		Looked int        `json:"looked"`
		At     *time.Time `json:"at"`
		ID     uuid.UUID  `json:"id"`
	}{1, 1000, &at, uuid.Nil})
	return t
}

// However fast the floor goes on, and however many rows wait below it, the front is looked at again soon:
// the rows of a worker that was killed may be there. But no more of the time is spent on that than passes
// may have. Half of the rows are of one key here.
func TestPassesEnd(t *testing.T) {
	t.Parallel()
	k := newKeyed()
	front := time.Now()
	now := front
	shares := []dispatcher.Share{{Topic: "orders", Limit: 500}}
	looked, longest, inSteps := now, time.Duration(0), time.Duration(0)
	for now.Sub(front) < 10*time.Second {
		l := k.next(shares, 100, now)
		from := l.times[0]
		if from.IsZero() {
			looked, from = now, front
		}
		longest = max(longest, now.Sub(looked))
		f, took := found{at: front.Add(time.Hour)}, 20*time.Millisecond
		reached := from.Add(1000 * time.Microsecond) // a row is a microsecond: 500 can be had, 500 wait
		if l.steps[0] && now.After(front) {
			took = time.Millisecond + time.Duration(l.rows[0])*time.Microsecond
			inSteps += took
			reached = from.Add(time.Duration(2*l.rows[0]) * time.Microsecond)
		} else {
			f.rows = make([]row, l.limits[0])
		}
		now = now.Add(took)
		k.update(l, reach(reached), f, now)
	}
	t.Logf("at most %v between two looks at the front; %v of 10 s in steps", longest, inSteps)
	if longest > 5*time.Second {
		t.Errorf("the front was not looked at for %v, want at most 5 s", longest)
	}
	if inSteps > 10*time.Second/passShare {
		t.Errorf("steps took %v of 10 s, want at most one part in %d", inSteps, passShare)
	}
}

// A claim looks at a little more than the last one would have needed, whether that was filled or not, and
// whatever part of it was for a key that is read again.
func TestLooksAhead(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ limit, looked, rows, want int }{
		{1000, 1000, 1000, 1100}, // every row could be had
		{1000, 2000, 1000, 2200}, // every second one, and the claim was filled
		{1000, 1100, 550, 2200},  // and was not
		{1000, 9000, 100, 4400},  // one in ninety: that many are not looked at
		{10, 10, 10, lookLeast},
	} {
		k := newKeyed()
		shares := []dispatcher.Share{{Topic: "orders", Limit: test.limit}}
		now := time.Now()
		for range 2 { // the first is a step
			l := k.next(shares, 100, now)
			told := reach(now)
			told.Reached[0].Looked = test.looked
			k.update(l, told, found{at: now, rows: make([]row, test.rows)}, now)
		}
		if l := k.next(shares, 100, now); int(l.rows[0]) != test.want || l.steps[0] {
			t.Errorf("%+v: looks at %d rows, a step: %v", test, l.rows[0], l.steps[0])
		}
	}
}

// While a claim can be filled with other rows, a key that is read again gets a small part of it; when not,
// half. Many keys share.
func TestRecallShares(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, test := range []struct {
		limit, keys          int
		others               bool
		want, each, ofRanges int
	}{
		{480, 1, true, 1, 30, 450},
		{480, 10, true, 10, 3, 450},
		{480, 1000, true, 30, 1, 450},
		{480, 1, false, 1, 100, 380},
		{480, 60, false, 60, 4, 240},
		{2, 9, true, 1, 1, 1},
		{1, 9, false, 0, 0, 1},
	} {
		k := newKeyed()
		shares := []dispatcher.Share{{Topic: "orders", Limit: test.limit}}
		k.next(shares, 100, now)
		p := k.byTopic["orders"]
		p.others = test.others
		for key := range test.keys {
			p.remember(int64(key), now.Add(-time.Minute))
		}
		p.remember(-1, now) // not due
		l := k.next(shares, 100, now)
		if len(l.keys) != test.want || int(l.limits[0]) != test.ofRanges {
			t.Errorf("%+v: %d keys, and %d rows of the range", test, len(l.keys), l.limits[0])
		}
		for _, n := range l.keyRows {
			if int(n) != test.each {
				t.Errorf("%+v: a key gets %d rows", test, n)
			}
		}
	}
}
