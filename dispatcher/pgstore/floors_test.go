package pgstore

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// A topic's next claim starts behind a full share, a little before now after one that took all that
// was due, and at the front whenever the claim may have left rows that were due.
func TestFloors(t *testing.T) {
	t.Parallel()
	now := time.Now()
	old := position{now.Add(-time.Hour), uuid.New()}
	rows := func(n int) []row {
		rows := make([]row, n)
		for i := range rows {
			rows[i].position = position{old.at, uuid.New()}
		}
		if n > 0 {
			rows[n-1].position = old
		}
		return rows
	}
	front, caughtUp := position{}, position{at: now.Add(-slack)}
	for name, test := range map[string]struct {
		got  found
		want position
	}{
		"nothing":               {found{}, front},
		"full":                  {found{rows: rows(3), at: now}, old},
		"short":                 {found{rows: rows(2), at: now}, caughtUp},
		"cut by bytes":          {found{rows: rows(2), at: now, cut: true}, front},
		"full, another was cut": {found{rows: rows(3), at: now, cut: true}, old},
		"short with deaths":     {found{rows: rows(2), at: now, deaths: make([]dispatcher.Death, 1)}, front},
	} {
		f := floors{byTopic: map[string]floor{}}
		f.update([]dispatcher.Share{{Topic: "a", Limit: 3}}, test.got)
		times, ids, floored := f.next([]string{"a", "never seen"})
		if !times[0].Equal(test.want.at) || ids[0].Bytes != test.want.id || floored != (test.want != front) {
			t.Errorf("%s: starts at %v %v, floored %t, want %+v", name, times[0], ids[0], floored, test.want)
		}
		if !times[1].IsZero() || ids[1].Bytes != uuid.Nil || !ids[1].Valid {
			t.Errorf("a topic that was never seen starts at %v %v", times[1], ids[1])
		}
	}
}

// However busy a topic is, its claims start at the front now and then.
func TestFloorsExpire(t *testing.T) {
	t.Parallel()
	f := floors{byTopic: map[string]floor{"a": {since: time.Now().Add(-fullPass)}, "b": {since: time.Now().Add(time.Hour)}}}
	if _, _, floored := f.next([]string{"a"}); floored {
		t.Error("a floor outlived the time for a full pass")
	}
	full := found{rows: []row{{position: position{at: time.Now()}}}}
	before := f.byTopic["b"].since
	f.update([]dispatcher.Share{{Topic: "b", Limit: 1}}, full)
	if after := f.byTopic["b"].since; !after.Equal(before) {
		t.Errorf("a claim that did not start at the front put the next full pass off from %v to %v", before, after)
	}
}

// The shares of several topics are told apart.
func TestFloorsByTopic(t *testing.T) {
	t.Parallel()
	now := time.Now()
	f := floors{byTopic: map[string]floor{}}
	last := position{now.Add(-time.Minute), uuid.New()}
	f.update([]dispatcher.Share{{Topic: "a", Limit: 2}, {Topic: "b", Limit: 5}, {Topic: "c", Limit: 1}}, found{at: now, rows: []row{
		{share: 0, position: position{at: now.Add(-time.Hour)}}, {share: 0, position: last},
		{share: 2, position: last},
	}})
	times, _, _ := f.next([]string{"a", "b", "c"})
	if !times[0].Equal(last.at) || !times[1].Equal(now.Add(-slack)) || !times[2].Equal(last.at) {
		t.Errorf("floors are %v", times)
	}
}
