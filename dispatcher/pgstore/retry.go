package pgstore

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// rowRetry is the column retry: the policy of one row. Its names are those of the configuration's backoff.
type rowRetry struct {
	Strategy      string `json:"strategy"`
	Base          string `json:"base"`
	Max           string `json:"max"`
	Multiplier    string `json:"multiplier"`
	JitterPercent *int   `json:"jitterPercent"`
}

// decodeRetry reads a row's own policy, nil for none.
func decodeRetry(data []byte) (dispatcher.Backoff, error) {
	if len(data) == 0 {
		return nil, nil
	}
	r := rowRetry{Base: "1s", Max: "1h", Multiplier: "2"}
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, err
	}
	base, err := time.ParseDuration(r.Base)
	if err != nil {
		return nil, fmt.Errorf("base: %w", err)
	}
	limit, err := time.ParseDuration(r.Max)
	if err != nil {
		return nil, fmt.Errorf("max: %w", err)
	}
	switch r.Strategy {
	case "", "Exponential":
		return dispatcher.ExponentialBackoff(base, limit), nil
	case "Linear":
		return dispatcher.LinearBackoff(base, limit), nil
	case "PowerOfTwo":
		return dispatcher.PowerOfTwoBackoff(), nil
	case "Multiplier":
		factor, err := strconv.ParseFloat(r.Multiplier, 64)
		if err != nil {
			return nil, fmt.Errorf("multiplier: %w", err)
		}
		jitter := 25
		if r.JitterPercent != nil {
			jitter = *r.JitterPercent
		}
		return dispatcher.MultiplierBackoff(base, limit, factor, float64(jitter)/100), nil
	default:
		return nil, fmt.Errorf("strategy %.20q is none; use Exponential, Multiplier, PowerOfTwo or Linear", r.Strategy)
	}
}
