package engine

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// The state in flight keeps its account under any order of claims, deliveries, losses, releases,
// write-backs and changes of the types that are admitted: each row is in one place, of each key only the first row is to
// be delivered, and none whose type is not admitted.
// CONTRACT: C-35, C-50, C-82
func TestLongFlightInvariants(t *testing.T) {
	skipLong(t)
	for seed := range uint64(200) {
		for _, ordering := range []dispatcher.Ordering{dispatcher.OrderingNone, dispatcher.OrderingKey} {
			g := &flightGame{rnd: rand.New(rand.NewPCG(seed, 14)), finished: map[*row]bool{}, seqs: map[string]int64{}, refuses: "-"}
			g.flight = testFlight(dispatcher.Config{Ordering: ordering, Concurrency: 8, Topics: nil}, func() {})
			g.now = time.Now()
			for step := range 400 {
				what := g.step()
				if wrong := g.check(); wrong != "" {
					t.Fatalf("seed %d, order %s, step %d (%s): %s", seed, ordering, step, what, wrong)
				}
			}
		}
	}
}

// flightGame plays with a flight, and remembers which rows it must hold.
type flightGame struct {
	*flight
	rnd      *rand.Rand
	now      time.Time
	running  []*delivery
	finished map[*row]bool // their outcome waits to be written
	seqs     map[string]int64
	refuses  string // the type that is not admitted
}

func (g *flightGame) step() string {
	switch n := g.rnd.IntN(10); {
	case n < 3:
		var claimed dispatcher.Claimed
		claimed.At = g.now
		topic := fmt.Sprint("topic-", g.rnd.IntN(3))
		for range 1 + g.rnd.IntN(6) {
			e := &dispatcher.Event{ID: uuid.New(), Topic: topic, EventType: fmt.Sprint(g.rnd.IntN(5)), AggregateID: fmt.Sprint(g.rnd.IntN(4)), Seq: g.seqs[topic], Payload: make([]byte, g.rnd.IntN(100))}
			g.seqs[topic]++
			if g.rnd.IntN(12) == 0 {
				claimed.Unreadable = append(claimed.Unreadable, dispatcher.Unreadable{Event: e, Err: errContent})
			} else {
				claimed.Events = append(claimed.Events, e)
			}
		}
		refused, unreadable, _ := g.add(claimed, g.now, g.writeCount())
		g.done(refused)
		g.done(unreadable)
		return "claim"
	case n < 6:
		if d := begun(g.flight, 1+g.rnd.IntN(3), g.now); d != nil {
			g.running = append(g.running, d)
		}
		return "begin"
	case n < 8 && len(g.running) > 0:
		i := g.rnd.IntN(len(g.running))
		d := g.running[i]
		g.running = slices.Delete(g.running, i, i+1)
		errs := make([]error, len(d.rows))
		for i := range errs {
			if g.rnd.IntN(3) == 0 {
				errs[i] = errors.New("refused")
			}
		}
		g.done(g.finish(d, errs))
		for i, r := range d.rows {
			if d.ours[i] {
				g.finished[r] = true
			}
		}
		return "finish"
	case n == 8:
		rows := slices.Collect(maps.Keys(g.finished))
		if len(rows) > 3 {
			rows = rows[:3]
		}
		for _, r := range rows {
			delete(g.finished, r)
		}
		g.written(rows)
		return "written"
	}
	switch g.rnd.IntN(4) {
	case 0:
		return g.admitOthers()
	case 1:
		g.mu.Lock()
		var rows []*row
		if t := g.byName[fmt.Sprint("topic-", g.rnd.IntN(3))]; t != nil {
			rows = g.unqueueTopic(t)
		}
		g.mu.Unlock()
		g.done(rows)
		return "pause a topic"
	case 2:
		g.mu.Lock()
		held := slices.Clone(g.inFlight)
		g.mu.Unlock()
		var lost []dispatcher.Lease
		for _, r := range held {
			if g.rnd.IntN(5) == 0 {
				lost = append(lost, r.event.Lease())
			}
		}
		_, behind := g.extended(held, lost, g.now)
		g.done(behind)
		return "extend with losses"
	default:
		for _, d := range g.running {
			if g.rnd.IntN(6) == 0 {
				d.began = g.now.Add(-time.Hour) // long ago
			}
		}
		stuck, behind := g.cutOverdue(g.now, time.Minute) // the first time cuts
		more, also := g.cutOverdue(g.now, time.Minute)
		g.done(append(behind, also...))
		for _, a := range append(stuck, more...) {
			for _, r := range a.rows {
				g.finished[r] = true
			}
		}
		return "stuck"
	}
}

// admitOthers changes which types are admitted: all, or all but one.
func (g *flightGame) admitOthers() string {
	g.refuses = fmt.Sprint(g.rnd.IntN(10)) // half of them are not a type
	refuses := g.refuses
	g.done(g.admit(func(eventType string) bool { return eventType != refuses }))
	return "admit other types"
}

// done notes rows that wait to be written back.
func (g *flightGame) done(rows []*row) {
	for _, r := range rows {
		g.finished[r] = true
	}
}

// check compares the account with the rows.
func (g *flightGame) check() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	place := map[*row]string{}
	put := func(r *row, where string) string {
		if was := place[r]; was != "" {
			return fmt.Sprintf("a row is %s and %s", was, where)
		}
		place[r] = where
		return ""
	}
	var bytes, pinned int64
	for r := range g.finished {
		if wrong := put(r, "finished"); wrong != "" {
			return wrong
		}
		bytes += r.bytes
	}
	held := map[*row]bool{}
	for i, r := range g.inFlight {
		if r.place != i+1 || held[r] {
			return "a held row is not where it says"
		}
		held[r] = true
		bytes += r.bytes
		if wrong := put(r, "held"); wrong != "" {
			return wrong
		}
	}
	for d := range g.active {
		pinned += d.pinned
	}
	if g.rows != len(place) || g.bytes != bytes+pinned {
		return fmt.Sprintf("%d rows with %d bytes are counted, and %d with %d are there", g.rows, g.bytes, len(place), bytes+pinned)
	}
	if len(g.active) != len(g.running) || g.flight.running != len(g.running) {
		return fmt.Sprintf("%d deliveries are counted, and %d run", g.flight.running, len(g.running))
	}
	inUse, counts, sums := 0, map[*topic]int{}, map[*topic]int64{}
	for d := range g.active {
		sums[d.topic] += d.pinned
	}
	for r := range held {
		counts[r.topic]++
		sums[r.topic] += r.bytes
	}
	for _, t := range g.byName {
		if t.count != counts[t] || t.bytes != sums[t] {
			return fmt.Sprintf("topic %s has %d rows and %d bytes, and counts %d and %d", t.name, counts[t], sums[t], t.count, t.bytes)
		}
		if t.count > 0 || t.running > 0 {
			inUse++
		}
	}
	if g.inUse != inUse {
		return fmt.Sprintf("%d topics are in flight, and %d are counted", inUse, g.inUse)
	}
	queued := map[*row]bool{}
	for _, t := range g.waiting {
		if len(t.queued) == 0 {
			return "a topic waits for a call without a queued row"
		}
		for _, r := range t.queued {
			if r.event.EventType == g.refuses {
				return "an event that is not admitted is queued"
			}
			if !held[r] || r.delivery != nil || queued[r] || !r.first() {
				return "a queued row is not held, is in delivery, is queued twice, or waits for an earlier one of its key"
			}
			queued[r] = true
		}
	}
	for id, l := range g.keys {
		if len(l.rows) == 0 {
			return "an empty line is kept"
		}
		for i, r := range l.rows {
			if i > 0 && (queued[r] || r.delivery != nil || l.rows[i-1].event.Seq >= r.event.Seq) {
				return fmt.Sprintf("a row of key %v overtakes another", id)
			}
		}
	}
	for r := range held {
		if r.delivery == nil && !queued[r] && r.first() {
			return "a row that may be delivered is not queued"
		}
	}
	return ""
}
