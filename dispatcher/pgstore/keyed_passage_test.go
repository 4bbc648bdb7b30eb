package pgstore

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func newKeyed() *keyed { return &keyed{byTopic: map[string]*passage{}, rows: map[uuid.UUID]heldRow{}} }

// reach is what a statement reports of its first range.
func reach(at time.Time) (t scanReport) {
	micros := microsOf(at)
	t.Reached = append(t.Reached, struct {
		Range   int       `json:"range"`
		Scanned int       `json:"looked"`
		At      *int64    `json:"at"`
		ID      uuid.UUID `json:"id"`
	}{1, 1000, &micros, uuid.Nil})
	return t
}

// However fast the floor advances, and however many rows wait below it, the front is looked at again soon:
// the rows of a worker that was killed may be there. But no more of the time is spent on that than passes
// may have. Half of the rows are of one key here.
func TestPassesEndHoweverManyRowsWait(t *testing.T) {
	t.Parallel()
	k := newKeyed()
	front := time.Now()
	now := front
	shares := []dispatcher.Share{{Topic: "orders", Limit: 500}}
	looked, longest, inSteps := now, time.Duration(0), time.Duration(0)
	for now.Sub(front) < 10*time.Second {
		l := k.next(shares, 100, 0, now)
		from := l.from[0].at
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
		k.update(l, reach(reached), f, time.Time{}, now)
	}
	t.Logf("at most %v between two looks at the front; %v of 10 s in steps", longest, inSteps)
	need.That(t, longest <= 5*time.Second, "the front was not looked at for %v, want at most 5 s", longest)
	need.That(t, inSteps <= 10*time.Second/passShare, "steps took %v of 10 s, want at most one part in %d", inSteps, passShare)
}

// A step that is slow once, because the machine or the server is, does not put off the next one: rows of a
// worker that was killed may wait for it. When each is slow, the wait is bounded.
func TestSlowStepDelaysNoOther(t *testing.T) {
	t.Parallel()
	k, front := newKeyed(), time.Now()
	now := front
	shares := []dispatcher.Share{{Topic: "orders", Limit: 500}}
	for i, step := range []struct{ took, before time.Duration }{
		{5 * time.Millisecond, fullPass},
		{2 * time.Second, fullPass},
		{5 * time.Millisecond, fullPass},
		{2 * time.Second, fullPass},
		{2 * time.Second, fullPass},
		{2 * time.Second, passShare*passDebt + fullPass},
	} {
		began := now
		l := k.next(shares, 100, 0, now)
		for ; !l.steps[0] || now.Equal(front); l = k.next(shares, 100, 0, now) { // the first has nothing to go to
			k.update(l, reach(front.Add(time.Hour)), found{at: now, rows: make([]row, l.limits[0])}, time.Time{}, now)
			now = now.Add(time.Millisecond)
		}
		waited := now.Sub(began)
		need.That(t, waited <= step.before, "step %d came after %v, want at most %v", i, waited, step.before)
		now = now.Add(step.took)
		k.update(l, reach(front.Add(time.Duration(i)*time.Minute)), found{at: now}, time.Time{}, now) // there is always more
	}
}

// A claim looks at a little more than the last one would have needed, whether that was filled or not, and
// whatever part of it was for a key that is read again.
func TestClaimsLookALittleAhead(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ limit, looked, rows, want int }{
		{1000, 1000, 1000, 1100}, // every row could be had
		{1000, 2000, 1000, 2200}, // every second one, and the claim was filled
		{1000, 1100, 550, 2200},  // and was not
		{1000, 9000, 100, 4400},  // one in ninety: that many are not looked at
		{2000, 9000, 100, 8800},  // also when a step has fewer
		{10, 10, 10, minScan},
	} {
		k := newKeyed()
		shares := []dispatcher.Share{{Topic: "orders", Limit: test.limit}}
		now := time.Now()
		for range 2 { // the first is a step
			l := k.next(shares, 100, 0, now)
			report := reach(now)
			report.Reached[0].Scanned = test.looked
			k.update(l, report, found{at: now, rows: make([]row, test.rows)}, time.Time{}, now)
		}
		if l := k.next(shares, 100, 0, now); int(l.rows[0]) != test.want || l.steps[0] {
			t.Errorf("%+v: looks at %d rows, a step: %v", test, l.rows[0], l.steps[0])
		}
	}
}

// Claims are dense once one was full, nearly all of whose rows could be had, and as long as they are like that
// in all topics. Keys that are to be read again have a statement of their own, before it.
func TestClaimsAreDenseAfterAFullOne(t *testing.T) {
	t.Parallel()
	shares := []dispatcher.Share{{Topic: "orders", Limit: 1000}}
	for name, test := range map[string]struct {
		rows     int  // of 1000 that were looked at
		last     bool // no more are due
		passed   bool // a key is to be read again
		turn     bool // in this claim
		topics   bool // another one was never claimed from
		nextPass bool // it is time for one
		want     bool
	}{
		"all can be had":     {rows: 1000, want: true},
		"nearly all":         {rows: 900, want: true},
		"many wait":          {rows: 600},
		"there are no more":  {rows: 1000, last: true},
		"a key was passed":   {rows: 1000, passed: true, want: true},
		"its turn has come":  {rows: 1000, passed: true, turn: true, want: true},
		"a topic is unknown": {rows: 1000, topics: true},
		"a pass is due":      {rows: 1000, nextPass: true},
	} {
		k, now := newKeyed(), time.Now()
		k.update(k.next(shares, 100, 0, now), reach(now), found{at: now}, time.Time{}, now) // a step
		report := reach(now)
		if test.last {
			report.Reached[0].At = nil
		}
		if l := k.next(shares, 100, 0, now); l.dense {
			t.Errorf("%s: dense before a claim was full", name)
		} else {
			k.update(l, report, found{at: now, rows: make([]row, test.rows)}, time.Time{}, now)
		}
		if test.passed {
			k.byTopic["orders"].remember(1, now.Add(-time.Minute))
		}
		if k.turn = now; test.turn {
			k.turn = now.Add(-recallEvery)
		}
		if test.nextPass {
			now = now.Add(time.Minute)
		}
		of := shares
		if test.topics {
			of = append(slices.Clone(shares), dispatcher.Share{Topic: "others", Limit: 1})
		}
		l := k.next(of, 100, 0, now)
		need.Want(t, test.want, "%s: dense is %v", l.dense, name)
		want := []string{"keyed"}
		switch {
		case test.want && test.turn:
			want = []string{"keyed", "dense"}
		case test.want:
			want = []string{"dense"}
		}
		store := &Store{sql: queries{"claim_keyed": "keyed", "claim_dense": "dense"}}
		var got []string
		for _, st := range store.statements(newClaiming(dispatcher.ClaimRequest{Keys: &dispatcher.KeyOrder{}}), l, known{}) {
			got = append(got, st.sql)
		}
		need.WantAll(t, want, "%s: the statements are %v, want %v", got, name)
	}
}

// While claims can be filled with other rows, keys are read again in one of several, and get a small part of it;
// when not, half of each. Many keys share.
func TestRecallsGetASmallShare(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, test := range []struct {
		limit, keys          int
		others               bool
		want, each, ofRanges int
	}{
		{480, 1, true, 1, 60, 420},
		{480, 10, true, 10, 6, 420},
		{480, 1000, true, 60, 1, 420},
		{480, 1, false, 1, 100, 380},
		{480, 60, false, 60, 4, 240},
		{2, 9, true, 1, 1, 1},
		{1, 9, false, 0, 0, 1},
	} {
		k := newKeyed()
		shares := []dispatcher.Share{{Topic: "orders", Limit: test.limit}}
		k.next(shares, 100, 0, now)
		need.That(t, k.turn.IsZero(), "%+v: no key is read again, and the turn is over", test)
		p := k.byTopic["orders"]
		p.others, k.turn = test.others, now
		for key := range test.keys {
			p.remember(int64(key), now.Add(-time.Minute))
		}
		p.remember(-1, now) // not due
		if test.others {
			if l := k.next(shares, 100, 0, now); len(l.keys) > 0 {
				t.Errorf("%+v: %d keys are read again before their turn", test, len(l.keys))
			}
			k.turn = now.Add(-recallEvery)
		}
		l := k.next(shares, 100, 0, now)
		if len(l.keys) != test.want || int(l.limits[0]) != test.ofRanges {
			t.Errorf("%+v: %d keys, and %d rows of the range", test, len(l.keys), l.limits[0])
		}
		if l := k.next(shares, 100, 0, now); test.others && len(l.keys) > 0 {
			t.Errorf("%+v: %d keys are read again after their turn", test, len(l.keys))
		}
		for _, n := range l.keyRows {
			need.That(t, int(n) == test.each, "%+v: a key gets %d rows", test, n)
		}
	}
}

// A claim that finds nothing has not seen all before it has looked from the front: at all of it, whatever an earlier claim
// has looked at.
func TestAllIsSeenFromTheFront(t *testing.T) {
	t.Parallel()
	const hot = 1
	shares := []dispatcher.Share{{Topic: "orders", Limit: 480}}
	now := time.Now()
	k := newKeyed()
	look := func(began time.Time, at *int64, step, all bool) {
		t.Helper()
		l, report := k.next(shares, 100, 0, now), reach(now)
		report.Reached[0].At = at
		if got := k.update(l, report, found{at: now}, began, now); l.steps[0] != step || got != all {
			t.Errorf("it looked from %v, a step: %v, and has seen all: %v; want %v, %v", l.from[0].at, l.steps[0], got, step, all)
		}
	}
	k.next(shares, 100, 0, now)
	p := k.byTopic["orders"]
	p.floor, p.passing, p.nextPass = position{at: now.Add(-time.Minute)}, false, now.Add(time.Hour)
	p.full = true
	p.remember(hot, now)
	p.remember(hot, now)
	first := now
	look(first, nil, false, false)
	front := microsOf(now.Add(-time.Hour))
	look(first, &front, true, false) // a step, and more is there

	now = now.Add(time.Minute)
	second := now
	look(second, nil, true, false) // the rest, but the front was a minute ago
	look(second, nil, true, true)
}

// The reports of two statements are merged: how far ranges were read is in the last.
func TestScanReportsOfTwoStatementsAreMerged(t *testing.T) {
	t.Parallel()
	all, err := reportOf([][]byte{
		[]byte(`{"reached": [{"range": 1, "looked": 0}], "followed": true, "passed": [{"range": 1, "key_hash": 1}], "recalled": [{"range": 1, "key_hash": 1}]}`),
		[]byte(`{"reached": [{"range": 1, "looked": 10}], "passed": [{"range": 1, "key_hash": 2}]}`),
	})
	need.OK(t, err)
	need.That(t, len(all.Reached) == 1 && all.Reached[0].Scanned == 10 && all.Followed && slices.Equal(all.Passed, []reportedKey{{1, 1}, {1, 2}}) && slices.Equal(all.Recalled, []reportedKey{{1, 1}}),
		"put together: %+v", all)
}

// A key that waits for rows which this worker holds is read as soon as the last of them is written back, and not before. One whose
// outcome is never written is forgotten.
//
// CONTRACT: C-50
func TestKeyIsReadWhenItsRowsAreWrittenBack(t *testing.T) {
	t.Parallel()
	now := time.Now()
	k := newKeyed()
	shares := []dispatcher.Share{{Topic: "orders", Limit: 500}}
	read := func(after time.Duration) int { return len(k.next(shares, 100, 0, now.Add(after)).keys) }
	held := []row{{key: 7, event: &dispatcher.Event{ID: uuid.New(), LeaseNumber: 3}}, {key: 7, event: &dispatcher.Event{ID: uuid.New(), LeaseNumber: 3}}}
	pass := func(rows ...row) {
		var report scanReport
		need.OK(t, json.Unmarshal([]byte(`{"reached": [{"range": 1}], "passed": [{"range": 1, "key_hash": 7}]}`), &report))
		need.That(t, k.update(k.next(shares, 100, 0, now), report, found{at: now, rows: rows}, now, now), "a claim would search on although rows wait for its own")
	}
	pass(held...)
	need.That(t, read(recallUntil/2) == 0, "a key is read while this worker holds rows of it")
	k.written([]dispatcher.Lease{held[0].event.Lease(), {ID: held[1].event.ID, Number: 2}})
	need.That(t, read(recallUntil/2) == 0, "it is read before the last one is written, or for a lease of before")
	k.written([]dispatcher.Lease{held[1].event.Lease()})
	need.That(t, read(time.Since(now)) == 1 && !k.byTopic["orders"].waitsForOwn(), "it is not read at once when all are written, or said to wait for them")
	pass(held...)
	for n := range 20 {
		k.byTopic["orders"].missed(7, now.Add(time.Duration(n)*recallUntil))
	}
	need.That(t, len(k.byTopic["orders"].keys) == 0 && !k.byTopic["orders"].waitsForOwn(), "a key whose row has no outcome is remembered for ever")
}
