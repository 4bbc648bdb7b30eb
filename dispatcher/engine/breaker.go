package engine

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

const (
	// unreachableRun is how many calls of the sink in a row must find the destination unreachable. When nothing
	// is delivered for unreachableFor meanwhile, unreachableMin suffice: such calls wait until they time out. A
	// topic may have several hosts: while half of them are unreachable, fifty calls in a row meet those once in
	// 10^15. The run takes little time, since a row of an unreachable topic is tried again at once, unless others
	// of its topic are delivered.
	unreachableRun = 50
	unreachableMin = 3
	unreachableFor = time.Second
	// refusingRun is how many deliveries in a row must fail, of refusingEvents different events, in
	// refusingCalls calls: one call that fails with all its events is one failure.
	refusingRun    = 30
	refusingEvents = 5
	refusingCalls  = 3
	// refusingFor is how long a topic stays Refusing after its last failure when half-open probes find no row.
	refusingFor = time.Minute
	// halfOpenRows is how many rows a half-open probe of a paused topic claims. Each may cost an attempt while
	// the topic is Refusing. Then the number doubles with each probe that fails: perhaps the events are bad, and
	// good ones behind them must get a turn.
	halfOpenRows = 5
)

// breaker decides whether a topic is claimed from (CONTRACT C-32). It is a state machine without clock
// or lock: the time is passed in, and health serializes its calls.
//
//	Closed ──a run of unavailable──▶ Unreachable ──a delivery succeeds, or no row is left to try──▶ Closed
//	Closed ──a run of failures──▶ Refusing ──a delivery succeeds──▶ Closed
//	Unreachable ──a run of failures──▶ Refusing ──a run of unavailable──▶ Unreachable
//
// While it is open the topic is paused. A half-open probe, of a few rows, shows whether the topic works again. The
// waits between probes grow until a delivery succeeds.
type breaker struct {
	state dispatcher.BreakerState
	since time.Time // when it was opened
	next  time.Time // when the next half-open probe is due
	// The waits between half-open probes.
	unreachable, refusing ramp

	deliveredAt time.Time // the last success
	// Since then: calls that found the destination unreachable, and since when it is.
	unreachableCalls int
	unreachableSince time.Time
	// Since then: deliveries that failed, in how many calls, of which events (refusingEvents at most), and
	// when the last one did.
	run, runCalls int
	failed        []uuid.UUID
	failedAt      time.Time
	tenants       tenants
	said          pauseSaid
}

func newBreaker() breaker {
	return breaker{
		state:       dispatcher.BreakerClosed,
		unreachable: ramp{250 * time.Millisecond, 2 * time.Second, 0},
		refusing:    ramp{time.Second, 15 * time.Second, 0},
	}
}

// delivered notes that the destination confirmed an event.
func (b *breaker) delivered(now time.Time) {
	b.deliveredAt = now
	b.state = dispatcher.BreakerClosed
	b.forget()
	b.unreachable.reset()
	b.refusing.reset()
}

// forget resets the counts.
func (b *breaker) forget() { b.unreachableCalls, b.run, b.runCalls, b.failed = 0, 0, 0, b.failed[:0] }

// refused notes that the destination accepted no event of a call, perhaps by its own fault.
func (b *breaker) refused(events []*dispatcher.Event, now time.Time) {
	b.runCalls++
	b.failedAt = now
	for _, e := range events {
		if b.run++; b.run == 1 {
			b.tenants.first, b.tenants.since, b.tenants.several = e.TenantID, now, false
		}
		b.tenants.several = b.tenants.several || b.tenants.first != e.TenantID
		if len(b.failed) < refusingEvents && !slices.Contains(b.failed, e.ID) {
			b.failed = append(b.failed, e.ID)
		}
	}
	if b.state != dispatcher.BreakerRefusing && !b.tenants.ofOne(now) && b.run >= refusingRun && b.runCalls >= refusingCalls && len(b.failed) >= refusingEvents {
		b.open(dispatcher.BreakerRefusing, now)
	}
}

// tenants are of a run of failures: the first and when it began, and whether there are others. delivered is the tenant of the last
// success.
type tenants struct {
	first, delivered uuid.NullUUID
	since            time.Time
	several          bool
}

// ofOne reports whether the run is all of one tenant, of which nothing was delivered before either. For a minute it is the
// tenant's fault, and not the destination's: something of another one may be delivered.
func (t tenants) ofOne(now time.Time) bool {
	return !t.several && t.first.Valid && t.first != t.delivered && now.Sub(t.since) < time.Minute
}

// unavailable notes that a call that began then could not reach the destination.
func (b *breaker) unavailable(began, now time.Time) {
	switch {
	case b.unreachableCalls == 0 && began.After(b.deliveredAt):
		b.unreachableSince = began
	case b.unreachableCalls == 0:
		b.unreachableSince = b.deliveredAt
	}
	b.unreachableCalls++
	long := b.unreachableCalls >= unreachableMin && now.Sub(b.unreachableSince) >= unreachableFor
	if b.state != dispatcher.BreakerUnreachable && (long || b.unreachableCalls >= unreachableRun) {
		b.open(dispatcher.BreakerUnreachable, now)
	}
}

// open pauses the topic. To change from one open state to the other takes a whole run.
func (b *breaker) open(state dispatcher.BreakerState, now time.Time) {
	if b.state == dispatcher.BreakerClosed {
		b.since = now
	}
	b.state = state
	b.forget()
	b.halfOpenBegan(now)
}

// halfOpenLimit is how many rows a half-open probe may claim now, 0 for none.
func (b *breaker) halfOpenLimit(now time.Time) (rows int) {
	switch {
	case now.Before(b.next):
		return 0
	case b.state == dispatcher.BreakerRefusing:
		return halfOpenRows << min(b.refusing.failures-1, 16)
	default:
		return halfOpenRows
	}
}

// halfOpenBegan notes that a half-open probe has begun. The next one comes after a longer wait.
func (b *breaker) halfOpenBegan(now time.Time) {
	wait := &b.unreachable
	if b.state == dispatcher.BreakerRefusing {
		wait = &b.refusing
	}
	b.next = now.Add(wait.next(rand.Float64))
}

// foundNone notes that a half-open probe found no row. Another worker may have delivered them all, or they are
// dead, and nothing would ever close this breaker. Rows that were refused may just wait for their next attempt,
// for a while.
func (b *breaker) foundNone(now time.Time) {
	if b.state == dispatcher.BreakerUnreachable || now.Sub(b.failedAt) >= refusingFor {
		b.state = dispatcher.BreakerClosed
		b.forget()
	}
}

// ramp is a wait that doubles from min to max with each failure, with the jitter of C-25.
type ramp struct {
	min, max time.Duration
	failures int
}

func (r *ramp) next(rnd func() float64) time.Duration {
	r.failures++
	return dispatcher.ExponentialBackoff(r.min, r.max).Delay(r.failures, rnd)
}

func (r *ramp) reset() { r.failures = 0 }
