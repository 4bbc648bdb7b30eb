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
		Range int        `json:"range"`
		At    *time.Time `json:"at"`
		ID    uuid.UUID  `json:"id"`
	}{1, &at, uuid.Nil})
	return t
}

// However fast the floor goes on, and however many rows wait below it, the front is looked at again soon:
// the rows of a worker that was killed may be there. Half of the rows are of one key here.
func TestPassesEnd(t *testing.T) {
	t.Parallel()
	k := newKeyed()
	front := time.Now()
	now := front
	shares := []dispatcher.Share{{Topic: "orders", Limit: 500}}
	looked, longest, claims := now, time.Duration(0), 0
	for ; now.Sub(front) < 10*time.Second; claims++ {
		l := k.next(shares, 100, now)
		from := l.times[0]
		if from.IsZero() {
			looked, from = now, front
		}
		longest = max(longest, now.Sub(looked))
		f := found{at: front.Add(time.Hour)}
		now = now.Add(20 * time.Millisecond)
		reached := from.Add(1000 * time.Microsecond) // a row is a microsecond: 500 can be had, 500 wait
		if l.steps[0] && !l.times[0].IsZero() {
			reached = from.Add(time.Duration(2*l.rows[0]) * time.Microsecond)
			now = now.Add(time.Duration(l.rows[0]) * time.Microsecond)
		} else {
			f.rows = make([]row, l.limits[0])
		}
		k.update(l, reach(reached), f, now)
	}
	t.Logf("%d claims; at most %v between two looks at the front", claims, longest)
	if longest > 2*time.Second {
		t.Errorf("the front was not looked at for %v, want at most 2 s", longest)
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
