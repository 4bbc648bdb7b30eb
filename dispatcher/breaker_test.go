package dispatcher

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
)

// Each step is an input, and what the breaker must be after it.
//
// CONTRACT: C-32
func TestBreaker(t *testing.T) {
	type step struct {
		after time.Duration // the clock moves on first
		do    func(*breaker, time.Time)
		state BreakerState
	}
	events := make([]uuid.UUID, 10)
	for i := range events {
		events[i] = uuid.New()
	}
	delivered := func(b *breaker, _ time.Time) { b.delivered() }
	once := func(b *breaker, now time.Time) { b.unavailable(now) }
	unavailable := func(b *breaker, now time.Time) {
		for range unreachableRun {
			b.unavailable(now)
		}
	}
	probed := func(ok bool) func(*breaker, time.Time) {
		return func(b *breaker, now time.Time) { b.probed(ok, now) }
	}
	refused := func(times, of int) func(*breaker, time.Time) {
		return func(b *breaker, now time.Time) {
			for i := range times {
				b.refused(events[i%of], now)
			}
		}
	}
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"unreachable until a probe succeeds", []step{
			{0, unavailable, BreakerUnreachable},
			{0, unavailable, BreakerUnreachable},
			{0, probed(false), BreakerUnreachable},
			{0, probed(true), BreakerClosed},
		}},
		{"unreachable until a delivery succeeds", []step{
			{0, unavailable, BreakerUnreachable},
			{0, delivered, BreakerClosed},
		}},
		{"one instance of the destination is away", []step{
			{0, once, BreakerClosed},
			{0, once, BreakerClosed},
			{0, delivered, BreakerClosed},
			{0, once, BreakerClosed},
			{0, once, BreakerClosed},
			{0, once, BreakerUnreachable},
		}},
		{"the first probe fails", []step{{0, probed(false), BreakerUnreachable}}},
		{"a failure is no sign of being reachable", []step{
			{0, unavailable, BreakerUnreachable},
			{0, refused(30, 10), BreakerUnreachable},
		}},
		{"refusing after a run", []step{
			{0, refused(19, 10), BreakerClosed},
			{0, refused(1, 1), BreakerRefusing},
			{0, delivered, BreakerClosed},
			{0, refused(19, 10), BreakerClosed},
		}},
		{"a success ends the run", []step{
			{0, refused(19, 10), BreakerClosed},
			{0, delivered, BreakerClosed},
			{0, refused(19, 10), BreakerClosed},
		}},
		{"few events say nothing of the destination", []step{
			{0, refused(100, 4), BreakerClosed},
			{0, refused(5, 5), BreakerRefusing},
		}},
		{"refusing, then gone", []step{
			{0, refused(20, 5), BreakerRefusing},
			{0, unavailable, BreakerUnreachable},
			{0, probed(true), BreakerClosed},
		}},
		{"a probe says nothing of refusing", []step{
			{0, refused(20, 5), BreakerRefusing},
			{0, probed(true), BreakerRefusing},
		}},
	} {
		b, now := newBreaker(), time.Unix(0, 0)
		for i, s := range test.steps {
			now = now.Add(s.after)
			if s.do(&b, now); b.state != s.state {
				t.Errorf("%s: after step %d the breaker is %s, want %s", test.name, i+1, b.state, s.state)
				break
			}
		}
	}
}

// CONTRACT: C-32
func TestBreakerWaits(t *testing.T) {
	b, now := newBreaker(), time.Unix(0, 0)
	if p := b.ask(now); p != (permit{}) {
		t.Errorf("closed: %+v, want no limit", p)
	}
	// The n-th wait is up to 250 ms * 2^(n-1), and not less than half of it.
	unavailable := func() {
		for range unreachableRun {
			b.unavailable(now)
		}
	}
	unavailable()
	for _, whole := range []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second,
		4 * time.Second, 8 * time.Second, 15 * time.Second, 15 * time.Second} {
		p := b.ask(now)
		if p.probe || p.wait < whole/2 || p.wait > whole {
			t.Errorf("unreachable: %+v, want a wait of %v to %v", p, whole/2, whole)
		}
		now = now.Add(p.wait)
		if p := b.ask(now); !p.probe {
			t.Errorf("unreachable, after the wait: %+v, want a probe", p)
		}
		b.probed(false, now)
	}
	// A destination that answers probes and not deliveries is not asked more often.
	b.probed(true, now)
	unavailable()
	if p := b.ask(now); p.wait < 7*time.Second {
		t.Errorf("unreachable again after a probe: %+v, want the long wait", p)
	}
	b.delivered()
	unavailable()
	if p := b.ask(now); p.wait > 250*time.Millisecond {
		t.Errorf("unreachable again after a delivery: %+v, want the short wait", p)
	}
}

// CONTRACT: C-32
func TestBreakerTrials(t *testing.T) {
	b, now := newBreaker(), time.Unix(0, 0)
	for range refusingRun {
		b.refused(uuid.New(), now)
	}
	var waits []time.Duration
	for trial := range 6 {
		p := b.ask(now)
		if p.wait < time.Second/2 {
			t.Fatalf("refusing: %+v, want a wait", p)
		}
		waits = append(waits, p.wait)
		now = now.Add(p.wait)
		if p, want := b.ask(now), trialRows<<trial; p.rows != want || p.wait != 0 {
			t.Fatalf("refusing, after the wait: %+v, want a trial of %d rows", p, want)
		}
	}
	if last := waits[5]; last > 15*time.Second || last < 7*time.Second || !slices.IsSorted(waits[:3]) {
		t.Errorf("the trials' waits are %v; they must grow up to 15s", waits)
	}
}
