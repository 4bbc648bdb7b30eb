package cli

import (
	"testing"
	"time"

	"github.com/outbox-operator/outbox-operator/api/config"
)

// The policy that the file names is the one that the engine gets. CONTRACT: C-25
func TestBackoffIsThatOfTheFile(t *testing.T) {
	second := config.Duration(time.Second)
	percent, none := 50, 0
	for name, c := range map[string]struct {
		b                 config.Backoff
		attempts          int
		shortest, longest time.Duration
	}{
		"default":            {config.Backoff{}, 3, 2 * time.Second, 4 * time.Second},
		"exponential":        {config.Backoff{Base: second, Max: 8 * second}, 9, 4 * time.Second, 8 * time.Second},
		"multiplier":         {config.Backoff{Strategy: config.Multiplier, Base: second, Max: 100 * second, Multiplier: "3", JitterPercent: &percent}, 3, 4500 * time.Millisecond, 13500 * time.Millisecond},
		"without jitter":     {config.Backoff{Strategy: config.Multiplier, JitterPercent: &none}, 3, 4 * time.Second, 4 * time.Second},
		"power of two":       {config.Backoff{Strategy: config.PowerOfTwo}, 30, 1024 * time.Second, 1024 * time.Second},
		"linear, overview's": {config.Backoff{Strategy: config.Linear}, 2, 2 * time.Minute, 2 * time.Minute},
	} {
		cfg := config.Config{Delivery: config.Delivery{Backoff: c.b}}
		cfg.ApplyDefaults()
		policy := backoff(cfg.Delivery.Backoff)
		shortest := policy.Delay(c.attempts, func() float64 { return 0 })
		longest := policy.Delay(c.attempts, func() float64 { return 1 - 1e-12 })
		if shortest.Round(time.Millisecond) != c.shortest || longest.Round(time.Millisecond) != c.longest {
			t.Errorf("%s: from %s to %s, want %s to %s", name, shortest, longest, c.shortest, c.longest)
		}
	}
}
