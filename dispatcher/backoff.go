package dispatcher

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/outbox-operator/outbox-operator/api/spec"
)

// Backoff says how long a row waits after a failed delivery (CONTRACT C-25). Use one of the four
// named policies of this package, or your own.
type Backoff interface {
	// Delay is the wait after the delivery number attempts (from 1) failed. It is never negative.
	// rnd returns a number in [0, 1), as math/rand/v2.Float64 does.
	Delay(attempts int, rnd func() float64) time.Duration
}

// DefaultBackoff is ExponentialBackoff(1s, 1h).
func DefaultBackoff() Backoff {
	return ExponentialBackoff(spec.DefaultBackoffBase, spec.DefaultBackoffMax)
}

// NewBackoff returns the policy that a configuration with all of its values names. The error is about the strategy or
// the multiplier, and says what to write.
func NewBackoff(b spec.Backoff) (Backoff, error) {
	base, limit := b.Base.D(), b.Max.D()
	switch b.Strategy {
	case "", spec.BackoffExponential:
		return ExponentialBackoff(base, limit), nil
	case spec.BackoffLinear:
		return LinearBackoff(base, limit), nil
	case spec.BackoffPowerOfTwo:
		return PowerOfTwoBackoff(), nil
	case spec.BackoffMultiplier:
		factor, err := strconv.ParseFloat(b.Multiplier, 64)
		if err != nil {
			return nil, fmt.Errorf("multiplier %.20q is not a number; write a decimal from \"1\" to \"10\" in quotes", b.Multiplier)
		}
		jitter := 25
		if b.JitterPercent != nil {
			jitter = int(*b.JitterPercent)
		}
		return MultiplierBackoff(base, limit, factor, float64(jitter)/100), nil
	default:
		return nil, fmt.Errorf("strategy %.20q is unknown; use Exponential, Multiplier, PowerOfTwo or Linear", b.Strategy)
	}
}

// ExponentialBackoff waits d = min(base * 2^(attempts-1), maxDelay), and then a time picked uniformly
// from [d/2, d], so that rows that failed together do not come back together.
func ExponentialBackoff(base, maxDelay time.Duration) Backoff { return exponential{base, maxDelay} }

// MultiplierBackoff waits min(base * multiplier^(attempts-1), maxDelay), and then a time picked
// uniformly from that, plus or minus the part jitter (0.25 is ±25 %).
func MultiplierBackoff(base, maxDelay time.Duration, multiplier, jitter float64) Backoff {
	return byMultiplier{base, maxDelay, multiplier, jitter}
}

// PowerOfTwoBackoff waits 2^min(attempts-1, 10) seconds, without jitter: 1 s after the first failure.
func PowerOfTwoBackoff() Backoff { return powerOfTwo{} }

// LinearBackoff waits min(base * attempts, maxDelay), without jitter: base after the first failure.
func LinearBackoff(base, maxDelay time.Duration) Backoff { return linear{base, maxDelay} }

type exponential struct{ base, maxDelay time.Duration }

func (p exponential) Delay(attempts int, rnd func() float64) time.Duration {
	d := atMost(float64(p.base)*math.Pow(2, float64(attempts-1)), p.maxDelay)
	return d/2 + time.Duration(rnd()*float64(d-d/2))
}

type byMultiplier struct {
	base, maxDelay     time.Duration
	multiplier, jitter float64
}

func (p byMultiplier) Delay(attempts int, rnd func() float64) time.Duration {
	d := float64(atMost(float64(p.base)*math.Pow(p.multiplier, float64(attempts-1)), p.maxDelay))
	return atMost(d*(1-p.jitter+2*p.jitter*rnd()), math.MaxInt64)
}

type powerOfTwo struct{}

func (powerOfTwo) Delay(attempts int, _ func() float64) time.Duration {
	return time.Second << max(0, min(attempts-1, 10))
}

type linear struct{ base, maxDelay time.Duration }

func (p linear) Delay(attempts int, _ func() float64) time.Duration {
	return atMost(float64(p.base)*float64(attempts), p.maxDelay)
}

// atMost turns nanoseconds, which may be too many for a Duration or infinite, into one of 0 to limit.
func atMost(nanoseconds float64, limit time.Duration) time.Duration {
	switch {
	case nanoseconds >= float64(limit):
		return limit
	case nanoseconds > 0:
		return time.Duration(nanoseconds)
	default:
		return 0
	}
}
