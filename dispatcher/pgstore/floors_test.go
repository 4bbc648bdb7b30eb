package pgstore

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
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
	rows := func(reasons ...ending) []row {
		rows := make([]row, len(reasons))
		for i, reason := range reasons {
			rows[i] = rowAt(position{last.at, uuid.New()})
			rows[i].ended = reason
		}
		rows[len(rows)-1].event.ID = last.id
		return rows
	}
	const dead = ending(dispatcher.ReasonProcessingTimeout)
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
		need.That(t, s.from[0].compare(test.want) == 0 && s.floored && s.pass, "%s: starts at %+v, floored %t, pass %t, want %+v", name, s.from[0], s.floored, s.pass, test.want)
		need.That(t, s.from[1] == position{}, "a topic that was never seen starts at %+v", s.from[1])
	}
}

// However busy a topic is, its claims start at the front now and then, and so does one that is requested for
// because the last one found nothing.
func TestFullPassesComeNowAndThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFloors()
		shares := []dispatcher.Share{{Topic: "a", Limit: 1}}
		claim := func() (pass bool) {
			s := f.next([]string{"a"})
			f.update(s, shares, found{at: time.Now(), rows: []row{rowAt(position{at: time.Now()})}})
			return s.pass
		}
		need.That(t, claim() && !claim(), "the first claim starts at the front, and the second behind it")
		passes := 0
		for range 100 {
			time.Sleep(fullPass / 10)
			if claim() {
				passes++
			}
		}
		need.Want(t, 10, "%d of 100 claims started at the front, want each tenth", passes)
		need.That(t, f.lift(shares) && claim() && !claim(), "a lifted floor makes one claim start at the front")
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
		share := spent.Seconds() / time.Since(began).Seconds()
		need.That(t, share >= 0.04 && share <= 0.06, "full passes took %.0f%% of the time, want 5%%", 100*share)

		time.Sleep(time.Minute)
		f.lift(shares)
		claim(time.Hour) // the server stood still
		waited := time.Now()
		for !f.lift(shares) {
			time.Sleep(10 * time.Millisecond)
		}
		took := time.Since(waited)
		need.That(t, took <= 6*time.Second, "after a pass that took an hour the next one came after %v, want a few seconds", took)
	})
}

// On a server that is slow with every claim, passes are as frequent: what waits for one would wait longer
// the busier the server is.
func TestFullPassesOnASlowServerAreAsFrequent(t *testing.T) {
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
		need.That(t, passes >= 180, "%d passes in 100 s, want one each 500 ms or so", passes)
	})
}

// The shares of several topics are kept apart.
func TestFloorsOfTopicsAreKeptApart(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Microsecond)
	f := newFloors()
	last := position{now.Add(-time.Minute), uuid.New()}
	third := rowAt(last)
	third.share = 2
	topics := []string{"a", "b", "c", "d"}
	f.update(f.next(topics), []dispatcher.Share{{Topic: "a", Limit: 2}, {Topic: "b", Limit: 5}, {Topic: "c", Limit: 1}, {Topic: "d"}},
		found{at: now, rows: []row{rowAt(position{at: now.Add(-time.Hour)}), rowAt(last), third}})
	from := f.next(topics).from
	need.That(t, from[0].at.Equal(last.at) && from[1].at.Equal(now.Add(-slack)) && from[2].at.Equal(last.at) && from[3] == position{}, "floors are %v", from)
}

// An older schema differs from none. There is no older one yet to make in a database.
func TestOlderSchemaDiffersFromNone(t *testing.T) {
	t.Parallel()
	got := compareSchema("outbox", "", 3, 1, 4)
	need.That(t, got.State == dispatcher.SchemaTooOld && got.Version == 3 && got.Required == 4 && strings.Contains(got.Message, "dispatcher migrate up"), "got %+v", got)
}

// Every statement names the tables of its schema alone.
func TestStatementsNameTheSchemaAlone(t *testing.T) {
	t.Parallel()
	for name, sql := range load("mine") {
		switch name {
		case "claim_parts", "oldest_transaction": // no statement; of no table
			continue
		}
		need.That(t, !strings.Contains(sql, "outbox.outbox_") && strings.Contains(sql, `"mine".outbox_`), "%s is not of schema mine: %s", name, sql)
	}
}

// The front of a range is before all rows. A row may be due at the same time, of a zone: then its position is not the front.
func TestFrontOfARangeIsNotARow(t *testing.T) {
	t.Parallel()
	got, _ := pgPositions([]position{{}, {at: timeOf(microsOf(time.Time{}))}, {at: timeOf(math.MinInt64)}})
	if finite := pgtype.Finite; got[0].InfinityModifier != pgtype.NegativeInfinity || got[1].InfinityModifier != finite || got[2].InfinityModifier != pgtype.NegativeInfinity {
		t.Errorf("got %+v, want -infinity for the front and for the earliest time alone", got)
	}
}

// Payloads share memory, but none can be seen or overwritten through another, and large ones have
// theirs to themselves: a slow event keeps little alive.
func TestPayloadsAreApartInTheirSlabs(t *testing.T) {
	t.Parallel()
	d := newDecoder("shop", claiming{})
	var want, got [][]byte
	for i := range 1000 {
		raw := bytes.Repeat([]byte{byte(i)}, i%300)
		want, got = append(want, bytes.Clone(raw)), append(got, d.copy(raw))
		clear(raw) // as the connection does when it reads on
	}
	for i := range got {
		if !bytes.Equal(got[i], want[i]) || cap(got[i]) != len(got[i]) {
			t.Fatalf("payload %d has %d bytes %v, and room for %d", i, len(got[i]), got[i], cap(got[i]))
		}
	}
	before := unsafe.SliceData(d.bytes)
	large := d.copy(make([]byte, slabBytes))
	need.That(t, len(large) == slabBytes && unsafe.SliceData(d.bytes) == before, "a large payload was cut from a slab")
}

// Topics that are forgotten while their claim is under way begin again.
func TestTopicsForgottenDuringAClaimBeginAgain(t *testing.T) {
	t.Parallel()
	now := time.Now()
	k := newKeyed()
	l := k.next([]dispatcher.Share{{Topic: "day-1", Limit: 1}}, 1, 0, now)
	l.keyRanges, l.keys = []int64{1}, []int64{6}
	forget(&k.mu, k.byTopic, nil)
	var report scanReport
	need.OK(t, json.Unmarshal([]byte(`{"reached": [{"range": 1}], "passed": [{"range": 1, "key_hash": 7}], "recalled": [{"range": 1, "key_hash": 8}]}`), &report))
	k.update(l, report, found{at: now}, now, now)
	need.That(t, len(k.keysWaiting([]dispatcher.Share{{Topic: "day-1"}})) == 1, "the key that waits is not remembered")
}

// Topics with live rows are not forgotten, in whatever order the database has them: this one is that of en_US.UTF-8.
// CONTRACT: C-37, C-50
func TestLiveTopicsAreNotForgotten(t *testing.T) {
	t.Parallel()
	var f floors
	f.byTopic = map[string]floor{"audit": {}, "Payments": {}, "gone": {}}
	forget(&f.mu, f.byTopic, []string{"audit", "orders", "Payments"})
	_, gone := f.byTopic["gone"]
	need.That(t, !gone && len(f.byTopic) == 2, "%v is remembered, want audit and Payments", f.byTopic)
}
