package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

func testFlight(cfg dispatcher.Config, woken func()) *flight {
	return newFlight(context.Background(), withDefaults(cfg), 1, woken)
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
	f.add(claimOf("a", 3, 1), long, 0)
	if d := begun(f, 1, time.Now()); d != nil {
		t.Fatal("a row was begun whose lease may be over")
	}
	select {
	case <-f.inDoubt:
	default:
		t.Error("the keeper was not woken to extend the lease")
	}
	f.add(claimOf("b", 1, 1), time.Now(), 0)
	if d := begun(f, 1, time.Now()); d == nil || d.rows[0].event.Topic != "b" {
		t.Error("a doubtful lease of one topic holds up another topic")
	}
	rows := f.due(time.Now())
	if len(rows) != 3 {
		t.Fatalf("%d leases are due, want the 3 old ones", len(rows))
	}
	gone, _ := f.extended(rows, []dispatcher.Lease{rows[1].event.Lease()}, time.Now())
	if gone != 1 {
		t.Errorf("%d rows are lost, want 1", gone)
	}
	seen := map[*row]bool{}
	for d := begun(f, 1, time.Now()); d != nil; d = begun(f, 1, time.Now()) {
		seen[d.rows[0]] = true
	}
	if len(seen) != 2 || seen[rows[1]] {
		t.Errorf("%d rows were begun, want the 2 that are still ours", len(seen))
	}
	if n := f.rows; n != 3 {
		t.Errorf("%d rows are in flight, want 3: the lost one is not", n)
	}
}

// Leases are extended after a third of their time, and deliveries are cut in the last sixth.
//
// CONTRACT: C-31
func TestLeaseTimes(t *testing.T) {
	f := testFlight(dispatcher.Config{Lease: 6 * time.Second, PollInterval: time.Second}, nil)
	sentAt := time.Now()
	f.add(claimOf("a", 1, 1), sentAt, 0)
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
		if due := len(f.due(now)) == 1; due != test.due {
			t.Errorf("after %v the lease is due for extension: %v, want %v", test.after, due, test.due)
		}
		f.cutUnsafe(now)
		if cut := d.ctx.Err() != nil; cut != test.cut {
			t.Errorf("after %v the delivery is cut: %v, want %v", test.after, cut, test.cut)
		}
	}
}

// One lost row of a batch does not make the others fail; when all are lost the delivery is cut.
//
// CONTRACT: C-23
func TestBatchIsCutWhenNothingOfItIsOurs(t *testing.T) {
	f := testFlight(dispatcher.Config{}, nil)
	f.add(claimOf("a", 2, 1), time.Now(), 0)
	d := begun(f, 2, time.Now())
	f.extended(d.rows, []dispatcher.Lease{d.rows[0].event.Lease()}, time.Now())
	if d.ctx.Err() != nil {
		t.Error("the delivery was cut while one of its rows is ours")
	}
	f.extended(d.rows, []dispatcher.Lease{d.rows[1].event.Lease()}, time.Now())
	if !errors.Is(context.Cause(d.ctx), errLeaseLost) {
		t.Errorf("the delivery without a row of ours continues, or was cut for %v", context.Cause(d.ctx))
	}
	if f.finish(d, make([]error, 2)); d.ours[0] || d.ours[1] {
		t.Errorf("rows that are not ours are written back: %v", d.ours)
	}
}

func TestFlightBounds(t *testing.T) {
	woken := 0
	f := testFlight(dispatcher.Config{Topics: []string{"a"}, BatchSize: 10, Concurrency: 2, MaxBytes: 100 * rowBytes}, func() { woken++ })
	room := func() bool { _, _, ok := f.room(); return ok }
	if _, bytes, ok := f.room(); !ok || bytes != 100*rowBytes*7/8 {
		t.Fatalf("an empty flight has room for %d bytes", bytes)
	}
	// By the queue: a batch may wait.
	f.add(claimOf("a", 11, 1), time.Now(), 0)
	if room() {
		t.Error("there is room for a claim while more than a batch waits")
	}
	var running []*delivery
	running = append(running, taken(f, 1))
	if woken != 1 || !room() {
		t.Errorf("with a batch left: woken %d times, room %v; want once and true", woken, room())
	}
	// By the rows that wait to be written back: 2 deliveries and 3 batches.
	for len(running) < 33 {
		f.add(claimOf("a", 1, 1), time.Now(), 0)
		running = append(running, taken(f, 1))
	}
	for _, d := range running {
		f.finish(d, make([]error, 1))
	}
	if woken = 0; room() {
		t.Error("there is room for a claim while the write-backs pile up")
	}
	for _, d := range running[:11] {
		f.written(d.rows)
	}
	if woken != 1 || !room() {
		t.Errorf("after write-backs: woken %d times, room %v; want once and true", woken, room())
	}
	// By bytes.
	f.written(f.emptyQueues())
	f.add(claimOf("b", 1, 200*rowBytes), time.Now(), 0)
	if woken = 0; room() {
		t.Error("there is room for a claim with all bytes taken")
	}
	f.written(f.emptyQueues())
	if _, bytes, ok := f.room(); woken != 1 || !ok || bytes < 60*rowBytes {
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
		f.add(claimOf("a", claimed, 1), time.Now(), 0)
		f.written(f.emptyQueues())
		if !f.filledAt.IsZero() {
			f.filledAt = f.filledAt.Add(-after)
		}
		if got, _, ok := f.room(); !ok || got != rows {
			t.Errorf("after %d rows lasted for %v the next claim takes %d, want %d", claimed, after, got, rows)
		}
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

// Topics are served in turn, a delivery has one topic, and a closed flight takes and gives nothing.
func TestFlightTurns(t *testing.T) {
	f := testFlight(dispatcher.Config{}, nil)
	f.add(claimOf("a", 5, 1), time.Now(), 0)
	f.add(claimOf("b", 2, 1), time.Now(), 0)
	var order string
	for range 4 {
		d := taken(f, 2)
		for _, r := range d.rows {
			order += r.event.Topic
		}
		order += " "
	}
	if order != "aa bb aa a " {
		t.Errorf("the deliveries had %q, want aa bb aa a", order)
	}
	f.add(claimOf("a", 2, 1), time.Now(), 0)
	if n := len(f.close()); n != 2 {
		t.Errorf("closing returned %d rows, want the 2 queued ones", n)
	}
	if refused, _, _ := f.add(claimOf("a", 3, 1), time.Now(), 0); len(refused) != 3 {
		t.Errorf("a closed flight refused %d rows of a claim, want all 3", len(refused))
	}
	if taken(f, 1) != nil {
		t.Error("a closed flight began a delivery")
	}
}
