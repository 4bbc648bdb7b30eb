package producer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// Retry is the backoff of one event, in place of the dispatcher's. Its names, meanings, limits and defaults are
// those of the dispatcher's own (backoff in its configuration file and resource, CONTRACT C-25):
// n is the number of the attempt that failed.
//
//   - Exponential: d = min(Base * 2^(n-1), Max), then uniform in [d/2, d].
//   - Multiplier: d = min(Base * Multiplier^(n-1), Max), plus or minus JitterPercent.
//   - PowerOfTwo: 2^min(n-1, 10) seconds. It has no Base and no Max.
//   - Linear: min(Base * n, Max).
//
// In SQL and in the column retry it is an object with the names strategy, base, max, multiplier and
// jitterPercent, of which each may be missing:
//
//	{"strategy": "Multiplier", "base": "2s", "max": "1m30s", "multiplier": "1.5", "jitterPercent": 10}
//
// Durations and the multiplier are texts there, jitterPercent is a number.
type Retry struct {
	// Strategy is Exponential, Multiplier, PowerOfTwo or Linear. Defaults to Exponential.
	Strategy string
	// Base is the first delay, 1ms to 24h and at most Max. 0 means 1s, and 60s for Linear.
	Base time.Duration
	// Max bounds the delay before jitter, 1ms to 24h. 0 means 1h.
	Max time.Duration
	// Multiplier is the factor of strategy Multiplier, such as "1.5": from "1" to "10". Empty means "2".
	Multiplier string
	// JitterPercent is the spread of strategy Multiplier, 0 to 100. nil means 25.
	JitterPercent *int
}

// retryJSON is how the column has it.
type retryJSON struct {
	Strategy      string `json:"strategy,omitempty"`
	Base          string `json:"base,omitempty"`
	Max           string `json:"max,omitempty"`
	Multiplier    string `json:"multiplier,omitempty"`
	JitterPercent *int   `json:"jitterPercent,omitempty"`
}

// MarshalJSON writes the object that the column has. It never fails.
func (r Retry) MarshalJSON() ([]byte, error) {
	duration := func(d time.Duration) string {
		if d == 0 {
			return ""
		}
		return d.String()
	}
	return json.Marshal(retryJSON{r.Strategy, duration(r.Base), duration(r.Max), r.Multiplier, r.JitterPercent})
}

// UnmarshalJSON reads the object that the column has. It fails for any other text.
func (r *Retry) UnmarshalJSON(data []byte) error {
	var j retryJSON
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&j); err != nil {
		return fmt.Errorf("retry: %w; use strategy, base, max, multiplier and jitterPercent", err)
	}
	*r = Retry{Strategy: j.Strategy, Multiplier: j.Multiplier, JitterPercent: j.JitterPercent}
	for _, d := range []struct {
		name, text string
		to         *time.Duration
	}{{"base", j.Base, &r.Base}, {"max", j.Max, &r.Max}} {
		if d.text == "" {
			continue
		}
		var err error
		if *d.to, err = time.ParseDuration(d.text); err != nil {
			return fmt.Errorf("retry: %s is not a duration; write it such as \"30s\": %w", d.name, err)
		}
	}
	return nil
}

var multiplier = regexp.MustCompile(`^([1-9](\.[0-9]+)?|10(\.0+)?)$`)

const (
	minDelay = time.Millisecond
	maxDelay = 24 * time.Hour
)

// checkRetry has the rules of the SQL function enqueue_retry_problem.
func (e *Event) checkRetry() error {
	if e.MaxAttempts < 0 || e.MaxAttempts > 1000 {
		return invalid("MaxAttempts", "is %d; choose 1 to 1000, or 0 for the dispatcher's", e.MaxAttempts)
	}
	if e.Expires < 0 || e.Expires > 0 && !e.ExpiresAt.IsZero() {
		return invalid("Expires", "is negative, or set with ExpiresAt (%s, %s); set one of them, or none", e.Expires, e.ExpiresAt)
	}
	if year := e.ExpiresAt.UTC().Year(); year > 9999 {
		return invalid("ExpiresAt", "is of the year %d; choose one up to 9999", year)
	}
	r := e.Retry
	if r == nil {
		return nil
	}
	base, limit := r.Base, r.Max
	if base == 0 {
		base = map[bool]time.Duration{false: time.Second, true: time.Minute}[r.Strategy == "Linear"]
	}
	if limit == 0 {
		limit = time.Hour
	}
	switch {
	case !slices.Contains([]string{"", "Exponential", "Multiplier", "PowerOfTwo", "Linear"}, r.Strategy):
		return invalid("Retry", "has the unknown strategy %q; choose Exponential, Multiplier, PowerOfTwo or Linear", r.Strategy)
	case r.Strategy != "Multiplier" && (r.Multiplier != "" || r.JitterPercent != nil):
		return invalid("Retry", "has Multiplier or JitterPercent without strategy Multiplier; set it, or remove them")
	case r.Strategy == "PowerOfTwo" && (r.Base != 0 || r.Max != 0):
		return invalid("Retry", "has Base or Max with strategy PowerOfTwo, whose delays are fixed; remove them")
	case min(base, limit) < minDelay || max(base, limit) > maxDelay:
		return invalid("Retry", "has a Base of %s and a Max of %s; choose both from 1ms to 24h", base, limit)
	case base > limit:
		return invalid("Retry", "has a Base of %s above its Max of %s; lower Base or raise Max", base, limit)
	case r.Multiplier != "" && (!multiplier.MatchString(r.Multiplier) || len(r.Multiplier) > 8):
		return invalid("Retry", "has a Multiplier that is not a decimal from 1 to 10; write it such as \"1.5\"")
	case r.JitterPercent != nil && (*r.JitterPercent < 0 || *r.JitterPercent > 100):
		return invalid("Retry", "has a JitterPercent of %d; choose 0 to 100", *r.JitterPercent)
	}
	return nil
}

// options are the last argument of the SQL functions, nil for none.
func (e *Event) options() *string {
	if e.MaxAttempts == 0 && e.Retry == nil && !e.AggregateSequence && e.Expires == 0 && e.ExpiresAt.IsZero() {
		return nil
	}
	expires := ""
	switch {
	case e.Expires > 0:
		expires = fmt.Sprintf("%dms", max(1, e.Expires.Milliseconds()))
	case !e.ExpiresAt.IsZero():
		expires = e.ExpiresAt.UTC().Format(time.RFC3339Nano)
	}
	return text(compact(struct {
		MaxAttempts       int    `json:"maxAttempts,omitempty"`
		Retry             *Retry `json:"retry,omitempty"`
		AggregateSequence bool   `json:"aggregateSequence,omitempty"`
		Expires           string `json:"expires,omitempty"`
	}{e.MaxAttempts, e.Retry, e.AggregateSequence, expires}))
}
