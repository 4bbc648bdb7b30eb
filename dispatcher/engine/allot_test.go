package engine

import (
	"math"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// How much of a topic may be claimed, and what limits it: the least of what the database, its destination, its next
// event and its share allow.
//
// CONTRACT: C-32, C-33
func TestAllot(t *testing.T) {
	now := time.Now()
	later, full := now.Add(time.Second), math.MaxInt
	paused := func(state dispatcher.BreakerState, next time.Time, failures int) func(*topic) {
		return func(t *topic) { t.state, t.next, t.refusing.failures = state, next, failures }
	}
	gated := func(next time.Time, open bool) func(*topic) {
		return func(t *topic) { t.gate = &gate{next: next, open: open} }
	}
	inFlight := func(rows int, bytes int64) func(*topic) {
		return func(t *topic) { t.count, t.bytes = rows, bytes }
	}
	slow := func(queued int) func(*topic) {
		return func(t *topic) { t.slow, t.queued = true, make([]*row, queued) }
	}
	doubtful := func(next time.Time) func(*topic) { return func(t *topic) { t.doubt = &doubt{next: next} } }
	for _, test := range []struct {
		name  string
		alone bool
		state []func(*topic)
		rows  int
		by    limit
		next  time.Time
	}{
		{"nothing is known", false, nil, full, unlimited, time.Time{}},
		{"unreachable", false, []func(*topic){paused(dispatcher.BreakerUnreachable, later, 0)}, 0, byBreaker, later},
		{"unreachable, due, and nothing was heard", false, []func(*topic){paused(dispatcher.BreakerUnreachable, now, 0), func(t *topic) { t.successes = 7 }}, 0, byProbe, time.Time{}},
		{"unreachable, due", false, []func(*topic){paused(dispatcher.BreakerUnreachable, now, 0)}, halfOpenRows, byBreaker, time.Time{}},
		{"refusing", true, []func(*topic){paused(dispatcher.BreakerRefusing, later, 1)}, 0, byBreaker, later},
		{"refusing, due", true, []func(*topic){paused(dispatcher.BreakerRefusing, now, 3)}, 4 * halfOpenRows, byBreaker, time.Time{}},
		{"gated", true, []func(*topic){gated(later, false)}, 0, byGate, later},
		{"gated, due", true, []func(*topic){gated(now, false)}, 1, byGate, time.Time{}},
		{"gate open", true, []func(*topic){gated(later, true)}, full, unlimited, time.Time{}},
		{"paused, due, and gated", false, []func(*topic){paused(dispatcher.BreakerRefusing, now, 1), gated(now, false)}, 1, byGate, time.Time{}},
		{"its claims fail", false, []func(*topic){doubtful(later)}, 0, byClaims, later},
		{"its claims fail, due", false, []func(*topic){doubtful(now)}, full, unlimited, time.Time{}},
		{"its outcomes are not written", true, []func(*topic){func(t *topic) { t.name = "unwritten" }}, 0, byOutcomes, time.Time{}},
		{"slow, with its share queued", false, []func(*topic){slow(10)}, 0, bySlowness, time.Time{}},
		{"slow, with less", false, []func(*topic){slow(9)}, full, unlimited, time.Time{}},
		{"slow and alone", true, []func(*topic){slow(100)}, full, unlimited, time.Time{}},
		{"as many rows as it leaves", false, []func(*topic){inFlight(100, 0)}, full, unlimited, time.Time{}},
		{"more rows than it leaves", false, []func(*topic){inFlight(101, 0)}, 0, byRows, time.Time{}},
		{"more bytes than it leaves", false, []func(*topic){inFlight(1, 1001)}, 0, byBytes, time.Time{}},
		{"alone with more than it leaves", true, []func(*topic){inFlight(200, 2000)}, full, unlimited, time.Time{}},
	} {
		topic := &topic{name: "orders", breaker: newBreaker()}
		for _, set := range test.state {
			set(topic)
		}
		l := load{now: now, alone: test.alone, rows: 100, bytes: 1000, lowShare: 10, successes: 7, unwritten: map[string]bool{"unwritten": true}}
		if a := topic.allot(l); a != (allotment{test.rows, test.by, test.next}) {
			t.Errorf("%s: a claim may take %+v, want %d rows by %q, more at %v", test.name, a, test.rows, test.by, test.next)
		}
	}
	alone := &topic{breaker: newBreaker()}
	if a := alone.allot(load{now: now, alone: true, bytes: 99, spare: 100}); a.rows != 0 || a.by != byBytes {
		t.Errorf("with no more than the spare bytes free a topic that is alone may take %+v", a)
	}
}
