package dispatcher

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// CONTRACT: C-25
// REQUIREMENT: OVERVIEW-12, STORAGE-35, STORAGE-50, STORAGE-51, cpt-cf-mini-chat-algo-usage-outbox-retry
func TestDelaysFollowTheirFormula(t *testing.T) {
	const s, m = time.Second, time.Minute
	low, high := func() float64 { return 0 }, func() float64 { return 0.5 }
	for _, test := range []struct {
		name     string
		policy   Backoff
		attempts int
		rnd      func() float64
		want     time.Duration
	}{
		{"default, first, low", DefaultBackoff(), 1, low, s / 2},
		{"default, first, middle", DefaultBackoff(), 1, high, 3 * s / 4},
		{"default, fourth, low", DefaultBackoff(), 4, low, 4 * s},
		{"default, ninth, low", DefaultBackoff(), 9, low, 128 * s},
		{"default, twelfth, low", DefaultBackoff(), 12, low, 1024 * s},
		{"default, at the maximum", DefaultBackoff(), 13, low, 30 * m},
		{"default, far above the maximum", DefaultBackoff(), 1000, high, 45 * m},
		{"exponential, own base", ExponentialBackoff(3*s, m), 3, low, 6 * s},
		{"exponential, maximum before jitter", ExponentialBackoff(3*s, 10*s), 3, high, 7500 * time.Millisecond},
		{"multiplier, lowest", MultiplierBackoff(s, m, 3, 0.25), 3, low, 6750 * time.Millisecond},
		{"multiplier, middle", MultiplierBackoff(s, m, 3, 0.25), 3, high, 9 * s},
		{"multiplier, jitter around the maximum", MultiplierBackoff(s, m, 3, 0.25), 1000, low, 45 * s},
		{"multiplier, no jitter", MultiplierBackoff(s, m, 1.5, 0), 2, low, 1500 * time.Millisecond},
		{"power of two, first", PowerOfTwoBackoff(), 1, high, s},
		{"power of two, second", PowerOfTwoBackoff(), 2, high, 2 * s},
		{"power of two, eleventh", PowerOfTwoBackoff(), 11, high, 1024 * s},
		{"power of two, twelfth", PowerOfTwoBackoff(), 12, high, 1024 * s},
		{"linear, first", LinearBackoff(m, time.Hour), 1, high, m},
		{"linear, ninth", LinearBackoff(m, time.Hour), 9, high, 9 * m},
		{"linear, at the maximum", LinearBackoff(m, time.Hour), 60, high, time.Hour},
		{"linear, above the maximum", LinearBackoff(m, time.Hour), 1000, high, time.Hour},
		{"overflow", MultiplierBackoff(math.MaxInt64, math.MaxInt64, 10, 1), 1000, func() float64 { return 0.99 }, math.MaxInt64},
		{"no base", ExponentialBackoff(0, m), 1000, high, 0},
	} {
		need.Want(t, test.want, "%s: Delay(%d) = %v, want %v", test.policy.Delay(test.attempts, test.rnd), test.name, test.attempts)
	}
}

// Whatever the attempt and the chance, a delay keeps to its policy's bounds.
//
// CONTRACT: C-25
// REQUIREMENT: STORAGE-35, STORAGE-51
func TestDelaysKeepToTheirBounds(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2)).Float64
	exponential := ExponentialBackoff(time.Second, 5*time.Minute)
	multiplier := MultiplierBackoff(time.Second, 5*time.Minute, 2, 0.25)
	seen := map[time.Duration]bool{}
	for attempts := 1; attempts <= 1000; attempts++ {
		whole := 5 * time.Minute
		if attempts <= 9 {
			whole = time.Second << (attempts - 1)
		}
		if d := exponential.Delay(attempts, rnd); d < whole/2 || d > whole {
			t.Errorf("exponential: Delay(%d) = %v, want %v to %v", attempts, d, whole/2, whole)
		} else {
			seen[d] = true
		}
		if d := multiplier.Delay(attempts, rnd); d < whole*3/4 || d > whole*5/4 {
			t.Errorf("multiplier: Delay(%d) = %v, want %v ± 25 %%", attempts, d, whole)
		}
	}
	need.That(t, len(seen) >= 900, "1000 delays have only %d values; rows that failed together come back together", len(seen))
}

// JSON names one of the policies. What it spells wrongly is said.
// CONTRACT: C-25
func TestParseBackoffRefusesWhatIsMisspelt(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		text     string
		attempts int
		least    string
	}{
		{`{}`, 1, "500ms"}, // exponential, and the least of its spread
		{`{"base": "4s", "max": "60s"}`, 1, "2s"},
		{`{"strategy": "Linear", "base": "4s", "max": "60s"}`, 2, "8s"},
		{`{"strategy": "Linear"}`, 1, "1m0s"},
		{`{"strategy": "Multiplier", "multiplier": "1", "base": "4s"}`, 1, "3s"},
		{`{"strategy": "Multiplier", "multiplier": "1", "jitterPercent": 0, "base": "4s"}`, 1, "4s"},
		{`{"strategy": "Multiplier", "base": "4s"}`, 2, "6s"},
	} {
		policy, err := ParseBackoff([]byte(test.text))
		need.That(t, err == nil && policy.Delay(test.attempts, func() float64 { return 0 }).String() == test.least, "%s: %v, %v; want %s", test.text, policy, err, test.least)
	}
	for text, want := range map[string]string{
		`{"strategy": "Linaer"}`:                          `strategy "Linaer" is unknown; use Exponential,`,
		`{"strategy": "Multiplier", "multiplier": "two"}`: `multiplier "two" is not a number; write a decimal`,
		`{"base": "4"}`:                                   `"4" is not a duration; write it with its unit`,
		`{"max": "an hour"}`:                              `"an hour" is not a duration; write it with its unit`,
	} {
		if policy, err := ParseBackoff([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s made %v, %v; want %s", text, policy, err, want)
		}
	}
}
