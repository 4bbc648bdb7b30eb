package engine

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Each step is an input, and what the breaker must be after it.
//
// CONTRACT: C-32
func TestBreakerFollowsCallsAndProbes(t *testing.T) {
	type step struct {
		do    func(*breaker, time.Time)
		state dispatcher.BreakerState
	}
	events := make([]uuid.UUID, 10)
	for i := range events {
		events[i] = uuid.New()
	}
	delivered := func(b *breaker, now time.Time) { b.delivered(now) }
	gone := func(calls int) func(*breaker, time.Time) {
		return func(b *breaker, now time.Time) {
			for i := range calls {
				at := now.Add(time.Duration(i))
				b.unavailable(at, at)
			}
		}
	}
	hung := func(calls int, took time.Duration) func(*breaker, time.Time) {
		return func(b *breaker, now time.Time) {
			for i := range calls {
				b.unavailable(now.Add(time.Duration(i)-took), now)
			}
		}
	}
	batches := func(calls int) func(*breaker, time.Time) {
		return func(b *breaker, now time.Time) {
			for range calls {
				b.refused(events[:], now)
			}
		}
	}
	refused := func(times, of int) func(*breaker, time.Time) {
		return func(b *breaker, now time.Time) {
			for i := range times {
				b.refused([]uuid.UUID{events[i%of]}, now)
			}
		}
	}
	foundNone := func(b *breaker, now time.Time) { b.foundNone(now) }
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"unreachable until a delivery succeeds", []step{
			{gone(unreachableRun - 1), dispatcher.BreakerClosed},
			{gone(1), dispatcher.BreakerUnreachable},
			{gone(100), dispatcher.BreakerUnreachable},
			{delivered, dispatcher.BreakerClosed},
			{gone(unreachableRun - 1), dispatcher.BreakerClosed},
		}},
		{"unreachable until nothing is left to try", []step{
			{gone(unreachableRun), dispatcher.BreakerUnreachable},
			{foundNone, dispatcher.BreakerClosed},
		}},
		{"some hosts of the destination are unreachable", []step{
			{gone(unreachableRun - 1), dispatcher.BreakerClosed},
			{delivered, dispatcher.BreakerClosed},
			{gone(unreachableRun - 1), dispatcher.BreakerClosed},
		}},
		{"calls that waited in vain while nothing was delivered", []step{
			{hung(2, 5*time.Second), dispatcher.BreakerClosed},
			{hung(1, 5*time.Second), dispatcher.BreakerUnreachable},
		}},
		{"calls that waited in vain while others got through", []step{
			{delivered, dispatcher.BreakerClosed},
			{hung(30, 5*time.Second), dispatcher.BreakerClosed},
		}},
		{"refusing after a run", []step{
			{refused(refusingRun-1, 10), dispatcher.BreakerClosed},
			{refused(1, 1), dispatcher.BreakerRefusing},
			{foundNone, dispatcher.BreakerRefusing},
			{delivered, dispatcher.BreakerClosed},
			{refused(refusingRun-1, 10), dispatcher.BreakerClosed},
		}},
		{"one call that fails with all its events is one failure", []step{
			{batches(refusingCalls - 1), dispatcher.BreakerClosed},
			{batches(1), dispatcher.BreakerRefusing},
		}},
		{"a success ends the run", []step{
			{refused(refusingRun-1, 10), dispatcher.BreakerClosed},
			{delivered, dispatcher.BreakerClosed},
			{refused(refusingRun-1, 10), dispatcher.BreakerClosed},
		}},
		{"few events say nothing of the destination", []step{
			{refused(100, refusingEvents-1), dispatcher.BreakerClosed},
			{refused(refusingEvents, refusingEvents), dispatcher.BreakerRefusing},
		}},
		{"refusing, then gone, then refusing, by whole runs", []step{
			{refused(refusingRun, 5), dispatcher.BreakerRefusing},
			{gone(unreachableRun - 1), dispatcher.BreakerRefusing},
			{gone(1), dispatcher.BreakerUnreachable},
			{refused(refusingRun-1, 5), dispatcher.BreakerUnreachable},
			{refused(1, 5), dispatcher.BreakerRefusing},
			{gone(unreachableRun - 1), dispatcher.BreakerRefusing},
		}},
	} {
		// A step takes some milliseconds: all of them together are shorter than unreachableFor.
		b, now := newBreaker(), time.Unix(0, 0)
		for i, s := range test.steps {
			now = now.Add(time.Millisecond)
			if s.do(&b, now); b.state != s.state {
				t.Errorf("%s: after step %d the breaker is %s, want %s", test.name, i+1, b.state, s.state)
				break
			}
		}
	}
}

// CONTRACT: C-32
func TestBreakerHalfOpenProbes(t *testing.T) {
	start := time.Unix(0, 0)
	for _, test := range []struct {
		state       dispatcher.BreakerState
		first, most time.Duration
		rows        []int
	}{
		{dispatcher.BreakerUnreachable, 250 * time.Millisecond, 2 * time.Second, []int{5, 5, 5, 5, 5, 5, 5, 5}},
		{dispatcher.BreakerRefusing, time.Second, 15 * time.Second, []int{5, 10, 20, 40, 80, 160, 320, 640}},
	} {
		b, now := newBreaker(), start
		b.open(test.state, now)
		for i, rows := range test.rows {
			// The n-th wait is up to first * 2^(n-1), and not less than half of it.
			whole := min(test.first<<i, test.most)
			if wait := b.next.Sub(now); wait < whole/2 || wait > whole {
				t.Errorf("%s: wait %d is %v, want %v to %v", test.state, i+1, wait, whole/2, whole)
			}
			if n := b.halfOpenLimit(b.next.Add(-1)); n != 0 {
				t.Errorf("%s: %d rows are tried before the time", test.state, n)
			}
			now = b.next
			if n := b.halfOpenLimit(now); n != rows {
				t.Errorf("%s: probe %d has %d rows, want %d", test.state, i+1, n, rows)
			}
			b.halfOpenBegan(now)
		}
		if !b.since.Equal(start) {
			t.Errorf("%s: it says that it opened at %v", test.state, b.since)
		}
		b.foundNone(now) // does not make the waits short
		if b.open(test.state, now); b.next.Sub(now) < test.most/2 {
			t.Errorf("%s: open again without a delivery, the wait is %v", test.state, b.next.Sub(now))
		}
		b.delivered(now)
		if b.open(test.state, now); b.next.Sub(now) > test.first {
			t.Errorf("%s: open again after a delivery, the wait is %v", test.state, b.next.Sub(now))
		}
	}
}

// Half of the hosts of a topic are unreachable: its breaker stays closed, in any order of the calls.
//
// CONTRACT: C-32
func TestBreakerWithHalfOfTheHosts(t *testing.T) {
	for seed := range uint64(20) {
		b, now := newBreaker(), time.Unix(0, 0)
		coin := rand.New(rand.NewPCG(seed, 0))
		for call := range 20_000 {
			now = now.Add(time.Microsecond)
			if coin.IntN(2) == 0 {
				b.unavailable(now.Add(-time.Microsecond), now)
			} else {
				b.delivered(now)
			}
			if b.state != dispatcher.BreakerClosed {
				t.Fatalf("seed %d: it opened at call %d", seed, call)
			}
		}
	}
}
