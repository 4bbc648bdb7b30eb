package dispatcher

import (
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
)

const (
	// unreachableRun is how many deliveries in a row must find the destination unreachable. One may
	// have met the one instance of it that is being restarted.
	unreachableRun = 3
	// refusingRun is how many deliveries in a row must fail, of refusingEvents different events.
	refusingRun    = 20
	refusingEvents = 5
	// trialRows is how many rows are claimed to try a refusing destination for the first time. Each
	// may cost an attempt. The number doubles with each trial that fails: it may be the events that
	// are bad, and then good ones behind them must have their turn.
	trialRows = 5
)

// breaker decides whether claiming goes on (CONTRACT C-32). It is a state machine without clock or
// lock: the time is passed in, and health serializes its calls.
//
//	Closed ──a run of unavailable──▶ Unreachable ──a probe or a delivery succeeds──▶ Closed
//	Closed ──a run of failures──▶ Refusing ──a delivery succeeds──▶ Closed
//	Refusing ──a run of unavailable──▶ Unreachable
//
// Its waits grow until a delivery succeeds, so that a destination that answers probes and then
// fails does not make it flutter.
type breaker struct {
	state  BreakerState
	next   time.Time // when the next probe or trial is due
	probes ramp
	trials ramp
	// Since the last success: deliveries that found nobody, deliveries that failed, and of how many
	// different events (refusingEvents at most).
	gone   int
	run    int
	failed map[uuid.UUID]struct{}
}

func newBreaker() breaker {
	return breaker{
		state:  BreakerClosed,
		probes: ramp{250 * time.Millisecond, 15 * time.Second, 0},
		trials: ramp{time.Second, 15 * time.Second, 0},
		failed: map[uuid.UUID]struct{}{},
	}
}

// delivered: the destination confirmed an event.
func (b *breaker) delivered() {
	b.state = BreakerClosed
	b.gone, b.run = 0, 0
	b.probes.reset()
	b.trials.reset()
	clear(b.failed)
}

// refused: the destination did not accept an event, and it may be the destination's fault.
func (b *breaker) refused(id uuid.UUID, now time.Time) {
	b.run++
	if len(b.failed) < refusingEvents {
		b.failed[id] = struct{}{}
	}
	if b.state == BreakerClosed && b.run >= refusingRun && len(b.failed) >= refusingEvents {
		b.state = BreakerRefusing
		b.next = now.Add(b.trials.next(rand.Float64))
	}
}

// unavailable: the destination could not be reached.
func (b *breaker) unavailable(now time.Time) {
	b.gone++
	if b.state != BreakerUnreachable && b.gone >= unreachableRun {
		b.state = BreakerUnreachable
		b.next = now.Add(b.probes.next(rand.Float64))
	}
}

// probed: the destination answered a probe, or not.
func (b *breaker) probed(ok bool, now time.Time) {
	switch {
	case !ok:
		b.state = BreakerUnreachable
		b.next = now.Add(b.probes.next(rand.Float64))
	case b.state == BreakerUnreachable:
		b.state = BreakerClosed
	}
}

// permit says how the claim loop may go on.
type permit struct {
	probe bool          // ask the destination first
	wait  time.Duration // come back after this time
	rows  int           // else claim so many rows at most; 0 means no limit
}

// ask is called before each claim. While the destination refuses, it grants one trial at a time.
func (b *breaker) ask(now time.Time) permit {
	wait := b.next.Sub(now)
	switch {
	case b.state == BreakerClosed:
		return permit{}
	case wait > 0:
		return permit{wait: wait}
	case b.state == BreakerUnreachable:
		return permit{probe: true}
	default:
		rows := trialRows << min(b.trials.failures-1, 16)
		b.next = now.Add(b.trials.next(rand.Float64))
		return permit{rows: rows}
	}
}

// ramp is a wait that doubles from min to max with each failure, with the jitter of C-25.
type ramp struct {
	min, max time.Duration
	failures int
}

func (r *ramp) next(rnd func() float64) time.Duration {
	r.failures++
	return ExponentialBackoff(r.min, r.max).Delay(r.failures, rnd)
}

func (r *ramp) reset() { r.failures = 0 }
