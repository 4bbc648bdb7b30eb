package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/storetest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

func testFlight(cfg dispatcher.Config, woken func()) *flight {
	return newFlight(context.Background(), withDefaults(cfg), 1, false, woken)
}

func claimOf(topic string, n, bytes int) dispatcher.Claimed {
	var c dispatcher.Claimed
	for range n {
		c.Events = append(c.Events, &dispatcher.Event{ID: uuid.New(), Topic: topic, Attempt: 1, Payload: make([]byte, bytes)})
	}
	return c
}

// begun begins a delivery of up to n rows; nil when there is none.
func begun(f *flight, n int, now time.Time) *delivery {
	d := &delivery{}
	if !f.begin(d, n, now) {
		return nil
	}
	return d
}

// taken waits for one; nil when the flight is closed.
func taken(f *flight, n int) *delivery {
	d := &delivery{}
	if !f.take(d, n) {
		return nil
	}
	return d
}

// A process that was stopped for longer than its lease begins nothing that it had queued before
// the database has confirmed the lease.
//
// CONTRACT: C-31
func TestRowsWithDoubtfulLeaseAreNotBegun(t *testing.T) {
	f := testFlight(dispatcher.Config{Lease: 6 * time.Second, PollInterval: time.Second}, nil)
	long := time.Now().Add(-5 * time.Second) // the last sixth of the lease has begun
	f.intake().add(claimOf("a", 3, 1), long, 0)
	if d := begun(f, 1, time.Now()); d != nil {
		t.Fatal("a row was begun whose lease may be over")
	}
	select {
	case <-f.signals.inDoubt:
	default:
		t.Error("the keeper was not woken to extend the lease")
	}
	f.intake().add(claimOf("b", 1, 1), time.Now(), 0)
	if d := begun(f, 1, time.Now()); d == nil || d.rows[0].event.Topic != "b" {
		t.Error("a doubtful lease of one topic holds up another topic")
	}
	rows := f.leases().due(time.Now())
	if len(rows) != 3 {
		t.Fatalf("%d leases are due, want the 3 old ones", len(rows))
	}
	f.leases().extended(rows, nil, long)
	need.That(t, begun(f, 1, time.Now()) == nil, "a row was begun by an extension whose response took as long as the lease")
	gone, _ := f.leases().extended(rows, []dispatcher.Lease{rows[1].event.Lease()}, time.Now())
	need.Want(t, 1, "%d rows are lost, want 1", gone)
	seen := map[*row]bool{}
	for d := begun(f, 1, time.Now()); d != nil; d = begun(f, 1, time.Now()) {
		seen[d.rows[0]] = true
	}
	need.That(t, len(seen) == 2 && !seen[rows[1]], "%d rows were begun, want the 2 that are still ours", len(seen))
	need.Want(t, 3, "%d rows are in flight, want 3: the lost one is not", f.account.rows)
}

// Leases are extended after a third of their time, and deliveries are cut in the last sixth.
//
// CONTRACT: C-31
func TestLeasesAreExtendedAfterAThird(t *testing.T) {
	f := testFlight(dispatcher.Config{Lease: 6 * time.Second, PollInterval: time.Second}, nil)
	sentAt := time.Now()
	f.intake().add(claimOf("a", 1, 1), sentAt, 0)
	d := begun(f, 1, sentAt)
	for _, test := range []struct {
		after    time.Duration
		due, cut bool
	}{
		{1999 * time.Millisecond, false, false},
		{2 * time.Second, true, false},
		{4999 * time.Millisecond, true, false},
		{5 * time.Second, true, true},
	} {
		now := sentAt.Add(test.after)
		need.Want(t, test.due, "after %v the lease is due for extension: %v, want %v", len(f.leases().due(now)) == 1, test.after)
		f.leases().cutUnsafe(now)
		need.Want(t, test.cut, "after %v the delivery is cut: %v, want %v", d.ctx.Err() != nil, test.after)
	}
}

// One lost row of a batch does not make the others fail; when all are lost the delivery is cut.
//
// CONTRACT: C-23
func TestBatchIsCutWhenNothingOfItIsOurs(t *testing.T) {
	f := testFlight(dispatcher.Config{}, nil)
	f.intake().add(claimOf("a", 2, 1), time.Now(), 0)
	d := begun(f, 2, time.Now())
	f.leases().extended(d.rows, []dispatcher.Lease{d.rows[0].event.Lease()}, time.Now())
	need.That(t, d.ctx.Err() == nil, "the delivery was cut while one of its rows is ours")
	f.leases().extended(d.rows, []dispatcher.Lease{d.rows[1].event.Lease()}, time.Now())
	if !errors.Is(context.Cause(d.ctx), errLeaseLost) {
		t.Errorf("the delivery without a row of ours continues, or was cut for %v", context.Cause(d.ctx))
	}
	f.finish(d, make([]error, 2))
	need.That(t, !d.writable[0] && !d.writable[1], "rows that are not ours are written back: %v", d.writable)
}

func TestFlightIsBoundedByQueueRowsAndBytes(t *testing.T) {
	woken := 0
	f := testFlight(dispatcher.Config{Topics: []string{"a"}, BatchSize: 10, Concurrency: 2, MaxBytes: 100 * rowBytes}, func() { woken++ })
	room := func() bool { _, _, ok := f.intake().room(); return ok }
	if _, bytes, ok := f.intake().room(); !ok || bytes != 100*rowBytes*7/8 {
		t.Fatalf("an empty flight has room for %d bytes", bytes)
	}
	// By the queue: a batch may wait.
	f.intake().add(claimOf("a", 11, 1), time.Now(), 0)
	need.That(t, !room(), "there is room for a claim while more than a batch waits")
	var running []*delivery
	running = append(running, taken(f, 1))
	if woken != 1 || !room() {
		t.Errorf("with a batch left: woken %d times, room %v; want once and true", woken, room())
	}
	// By the rows that wait to be written back: 2 deliveries and 3 batches.
	for len(running) < 33 {
		f.intake().add(claimOf("a", 1, 1), time.Now(), 0)
		running = append(running, taken(f, 1))
	}
	for _, d := range running {
		f.finish(d, make([]error, 1))
	}
	woken = 0
	need.That(t, !room(), "there is room for a claim while the write-backs pile up")
	for _, d := range running[:11] {
		f.written(d.rows)
	}
	if woken != 1 || !room() {
		t.Errorf("after write-backs: woken %d times, room %v; want once and true", woken, room())
	}
	// By bytes.
	f.written(f.takeBack(nil))
	f.intake().add(claimOf("b", 1, 200*rowBytes), time.Now(), 0)
	woken = 0
	need.That(t, !room(), "there is room for a claim with all bytes taken")
	f.written(f.takeBack(nil))
	if _, bytes, ok := f.intake().room(); woken != 1 || !ok || bytes < 60*rowBytes {
		t.Errorf("after the large row has gone: woken %d times, room %v for %d bytes", woken, ok, bytes)
	}
}

// Claims follow how long the rows of the last full one lasted: between a batch and what the deliveries
// take at once.
// REQUIREMENT: STORAGE-47
func TestClaimsFollowDeliveries(t *testing.T) {
	f := testFlight(dispatcher.Config{BatchSize: 500, Concurrency: 30}, func() {})
	want := func(after time.Duration, claimed, rows int) {
		t.Helper()
		f.intake().add(claimOf("a", claimed, 1), time.Now(), 0)
		f.written(f.takeBack(nil))
		if !f.claims.filledAt.IsZero() {
			f.claims.filledAt = f.claims.filledAt.Add(-after)
		}
		got, _, ok := f.intake().room()
		need.That(t, ok && got == rows, "after %d rows lasted for %v the next claim takes %d, want %d", claimed, after, got, rows)
	}
	want(0, 0, firstClaim)
	want(time.Millisecond, 100, 200)
	want(time.Millisecond, 200, 400)
	want(time.Millisecond, 399, 400) // not full: nothing is known
	want(time.Second, 399, 400)
	want(time.Millisecond, 400, 500)
	want(shortSupply, 500, 500)
	want(time.Second, 500, 250)
	want(time.Second, 250, 125)
	want(time.Second, 125, 62)
	want(time.Second, 62, 31)
	want(time.Second, 31, 30)
	want(time.Second, 30, 30)
	want(time.Millisecond, 30, 60)
}

// Topics are served in turn, of those without a call the newest first; a delivery has one topic, and a closed flight takes and gives nothing.
func TestFlightServesTopicsInTurn(t *testing.T) {
	f := testFlight(dispatcher.Config{}, nil)
	f.intake().add(claimOf("a", 5, 1), time.Now(), 0)
	f.intake().add(claimOf("b", 2, 1), time.Now(), 0)
	var order string
	for range 4 {
		d := taken(f, 2)
		for _, r := range d.rows {
			order += r.event.Topic
		}
		order += " "
	}
	need.Want(t, "bb aa aa a ", "the deliveries had %q, want bb aa aa a", order)
	f.intake().add(claimOf("a", 2, 1), time.Now(), 0)
	need.Want(t, 2, "closing returned %d rows, want the 2 queued ones", len(f.close()))
	refused, _, _ := f.intake().add(claimOf("a", 3, 1), time.Now(), 0)
	need.Want(t, 3, "a closed flight refused %d rows of a claim, want all 3", len(refused))
	need.That(t, taken(f, 1) == nil, "a closed flight began a delivery")
}

// A statement that fails for its rows is halved. A full one doubles the next if it took less than a quarter of what was too
// long last.
// CONTRACT: C-35
func TestSizeShrinksAndGrowsWithItsStatements(t *testing.T) {
	s := size{chunkRows, storeTimeout}
	for i, step := range []struct {
		rows int
		took time.Duration
		err  error
		want int
	}{
		{2000, 600 * time.Millisecond, sqlState("57014"), 1000},
		{1000, 140 * time.Millisecond, nil, 2000},
		{2000, 10 * time.Second, context.DeadlineExceeded, 1000},
		{1000, 3 * time.Second, nil, 1000},
		{1000, 2 * time.Second, nil, 2000},
		{2000, time.Millisecond, nil, 2000},
		{100, time.Millisecond, dispatcher.Refused(errContent), 50},
		{10, time.Millisecond, nil, 50},
		{50, time.Millisecond, nil, 100},
		{1, time.Second, dispatcher.Refused(errContent), 1},
		{1, 2 * time.Second, nil, 2},
		{2, time.Second, errContent, 2},
	} {
		if s.learn(step.rows, step.took, step.err); s.rows != step.want {
			t.Fatalf("step %d: the next statement has %d rows, want %d", i, s.rows, step.want)
		}
	}
}

// An outcome that takes too long alone delays those of its own topic for a few statements.
// CONTRACT: C-33
func TestOneOutcomeThatTakesTooLongDelaysFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const events = 100
		store := storetest.NewMemory()
		store.Add("orders", events)
		hangs := func(l dispatcher.Lease) bool { return l.ID == store.IDs()[0] }
		cut := &storetest.Hooked{Store: store, Before: func(_ context.Context, c storetest.Call) error {
			if c.Verb == "ack" && slices.ContainsFunc(c.Leases, hangs) {
				<-time.After(600 * time.Millisecond)
				return sqlState("57014")
			}
			return nil
		}}
		_, stop := begin(t, cut, confirms(1, succeeds), dispatcher.Config{Lease: time.Minute})
		took := delivered(t, 30*time.Second, store, "orders", events-1)
		t.Logf("delivered in %v", took)
		stop()
	})
}

// The state in flight keeps its account under any order of claims, deliveries, losses, releases,
// write-backs and changes of the types that are admitted: each row is in one place, of each key only the first row is to
// be delivered, or the first ones in one call, and none whose type is not admitted.
// CONTRACT: C-35, C-50, C-82
func TestLongFlightKeepsItsAccount(t *testing.T) {
	skipLong(t)
	for seed := range uint64(200) {
		for n, ordering := range []dispatcher.Ordering{dispatcher.OrderingNone, dispatcher.OrderingKey, dispatcher.OrderingKey} {
			g := &flightGame{rnd: rand.New(rand.NewPCG(seed, 14)), finished: map[*row]bool{}, seqs: map[string]int64{}, refuses: "-"}
			g.flight = testFlight(dispatcher.Config{Ordering: ordering, Concurrency: 8, Logger: slog.New(slog.DiscardHandler)}, func() {})
			g.queue.keys.together = n == 2
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
		refused, unreadable, _ := g.intake().add(claimed, g.now, g.account.writes)
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
			if d.writable[i] {
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
		if t := g.topics.byName[fmt.Sprint("topic-", g.rnd.IntN(3))]; t != nil {
			rows = g.takeBack(t)
		}
		g.mu.Unlock()
		g.done(rows)
		return "pause a topic"
	case 2:
		g.mu.Lock()
		held := slices.Clone(g.account.inFlight)
		g.mu.Unlock()
		var lost []dispatcher.Lease
		for _, r := range held {
			if g.rnd.IntN(5) == 0 {
				lost = append(lost, r.event.Lease())
			}
		}
		_, behind := g.leases().extended(held, lost, g.now)
		g.done(behind)
		return "extend with losses"
	default:
		for _, d := range g.running {
			if g.rnd.IntN(6) == 0 {
				d.began = g.now.Add(-time.Hour) // long ago
			}
		}
		stuck, behind := g.leases().cutOverdue(g.now, time.Minute) // the first time cuts
		more, also := g.leases().cutOverdue(g.now, time.Minute)
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
	g.done(g.controls().admit(func(eventType string) bool { return eventType != refuses }))
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
	for i, r := range g.account.inFlight {
		if r.place != i+1 || held[r] {
			return "a held row is not where it says"
		}
		held[r] = true
		bytes += r.bytes
		if wrong := put(r, "held"); wrong != "" {
			return wrong
		}
	}
	for d := range g.calls.active {
		pinned += d.pinned
	}
	if g.account.rows != len(place) || g.account.bytes != bytes+pinned {
		return fmt.Sprintf("%d rows with %d bytes are counted, and %d with %d are there", g.account.rows, g.account.bytes, len(place), bytes+pinned)
	}
	if len(g.calls.active) != len(g.running) || g.calls.running != len(g.running) {
		return fmt.Sprintf("%d deliveries are counted, and %d run", g.calls.running, len(g.running))
	}
	inUse, counts, sums := 0, map[*topic]int{}, map[*topic]int64{}
	for d := range g.calls.active {
		sums[d.topic] += d.pinned
	}
	for r := range held {
		counts[r.topic]++
		sums[r.topic] += r.bytes
	}
	for _, t := range g.topics.byName {
		if t.rows.all != counts[t] || t.rows.bytes != sums[t] {
			return fmt.Sprintf("topic %s has %d rows and %d bytes, and counts %d and %d", t.name, counts[t], sums[t], t.rows.all, t.rows.bytes)
		}
		if t.rows.all > 0 || t.calls.running > 0 {
			inUse++
		}
	}
	if g.account.busyTopics != inUse {
		return fmt.Sprintf("%d topics are in flight, and %d are counted", inUse, g.account.busyTopics)
	}
	queued := map[*row]bool{}
	for _, t := range g.queue.waiting {
		if len(t.queue.rows) == 0 {
			return "a topic waits for a call without a queued row"
		}
		for _, r := range t.queue.rows {
			if r.event.EventType == g.refuses {
				return "an event that is not admitted is queued"
			}
			if !held[r] || r.delivery != nil || queued[r] || !r.first() {
				return "a queued row is not held, is in delivery, is queued twice, or waits for an earlier one of its key"
			}
			queued[r] = true
		}
	}
	for id, l := range g.queue.keys.lines {
		if len(l.rows) == 0 {
			return "an empty line is kept"
		}
		for i, r := range l.rows {
			if i > 0 && (queued[r] || r.delivery != nil && (!g.queue.keys.together || r.delivery != l.rows[i-1].delivery) || l.rows[i-1].event.Seq >= r.event.Seq) {
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
