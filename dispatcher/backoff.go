package dispatcher

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Backoff says how long a row waits after a failed delivery (CONTRACT C-25). Use one of the four
// named policies of this package, or your own.
type Backoff interface {
	// Delay is the wait after the delivery number attempts (from 1) failed. It is never negative.
	// rnd returns a number in [0, 1), as math/rand/v2.Float64 does.
	Delay(attempts int, rnd func() float64) time.Duration
}

// DefaultBackoff is ExponentialBackoff(1s, 1h).
func DefaultBackoff() Backoff { return ExponentialBackoff(time.Second, time.Hour) }

// ParseBackoff returns the policy that JSON names, as spec.delivery.backoff of an OutboxDispatcher and the column retry of
// a row have it: strategy, base, max, multiplier and jitterPercent. Defaults to DefaultBackoff(); base defaults to 60s for
// Linear, multiplier to "2" and jitterPercent to 25. The error says what to write.
func ParseBackoff(text []byte) (Backoff, error) {
	b := struct {
		Strategy, Base, Max, Multiplier string
		JitterPercent                   float64
	}{Strategy: "Exponential", Max: "1h", Multiplier: "2", JitterPercent: 25}
	if err := json.Unmarshal(text, &b); err != nil {
		return nil, err
	}
	if b.Base == "" {
		b.Base = map[bool]string{true: "60s", false: "1s"}[b.Strategy == "Linear"]
	}
	base, err := duration(b.Base)
	limit, e := duration(b.Max)
	if err = cmp.Or(err, e); err != nil {
		return nil, err
	}
	switch b.Strategy {
	case "Exponential":
		return ExponentialBackoff(base, limit), nil
	case "Linear":
		return LinearBackoff(base, limit), nil
	case "PowerOfTwo":
		return PowerOfTwoBackoff(), nil
	case "Multiplier":
		factor, err := strconv.ParseFloat(b.Multiplier, 64)
		if err != nil {
			return nil, fmt.Errorf("multiplier %.20q is not a number; write a decimal from \"1\" to \"10\" in quotes", b.Multiplier)
		}
		return MultiplierBackoff(base, limit, factor, b.JitterPercent/100), nil
	default:
		return nil, fmt.Errorf("strategy %.20q is unknown; use Exponential, Multiplier, PowerOfTwo or Linear", b.Strategy)
	}
}

func duration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%.40q is not a duration; write it with its unit, as \"30s\", \"500ms\" or \"1m30s\"", text)
	}
	return d, nil
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
