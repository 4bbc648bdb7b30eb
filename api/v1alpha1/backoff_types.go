package v1alpha1

import (
	"github.com/outbox-operator/outbox-operator/api/spec"
)

// Backoff says how long a row waits after a failed delivery.
//
// +kubebuilder:validation:XValidation:rule="![has(self.base) ? self.base : '1s', has(self.max) ? self.max : '1s'].all(d, d.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$')) || duration(has(self.base) ? self.base : self.strategy == 'Linear' ? '60s' : '1s') <= duration(has(self.max) ? self.max : '1h')",fieldPath=".base",message="base must be at most max; lower base or raise max (when not set base is 1s, for Linear 60s, and max 1h)"
// +kubebuilder:validation:XValidation:rule="self.strategy == 'Multiplier' || (!has(self.multiplier) && !has(self.jitterPercent))",fieldPath=".strategy",message="multiplier and jitterPercent belong to strategy Multiplier; set it, or remove them"
// +kubebuilder:validation:XValidation:rule="self.strategy != 'PowerOfTwo' || (!has(self.base) && !has(self.max))",fieldPath=".strategy",message="strategy PowerOfTwo has fixed delays; remove base and max, or choose Exponential"
type Backoff struct {
	// strategy is how the delay d grows with the number of attempts n.
	// Exponential: d = min(base * 2^(n-1), max), then uniform between d/2 and d.
	// Multiplier: d = min(base * multiplier^(n-1), max), +/- jitterPercent.
	// PowerOfTwo: d = 2^min(n-1, 10) seconds.
	// Linear: d = min(base * n, max).
	// Defaults to Exponential.
	// +optional
	// +kubebuilder:default=Exponential
	Strategy BackoffStrategy `json:"strategy,omitempty"`

	// base is the first delay. From 1ms to 24h. When not set: 1s; for Linear, 60s.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1ms') && duration(self) <= duration('24h')",message="base must be a duration from 1ms to 24h, such as 1s"
	Base spec.Duration `json:"base,omitzero"`

	// max bounds the delay, before jitter. From 1ms to 24h. When not set: 1h.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1ms') && duration(self) <= duration('24h')",message="max must be a duration from 1ms to 24h, such as 1h"
	Max spec.Duration `json:"max,omitzero"`

	// multiplier is the growth of strategy Multiplier, a decimal from "1" to "10".
	// When not set: "2".
	// +optional
	// +kubebuilder:validation:MaxLength=8
	// +kubebuilder:validation:XValidation:rule="self.matches('^([1-9]([.][0-9]+)?|10([.]0+)?)$')",message="multiplier must be a decimal from \"1\" to \"10\" in quotes, such as \"2\" or \"1.5\""
	Multiplier string `json:"multiplier,omitempty"`

	// jitterPercent is the spread of strategy Multiplier to either side, in percent of
	// the delay. From 0 to 100. When not set: 25.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	JitterPercent *int32 `json:"jitterPercent,omitempty"`
}

// BackoffStrategy is how the delay between attempts grows.
// +kubebuilder:validation:Enum=Exponential;Multiplier;PowerOfTwo;Linear
type BackoffStrategy string

const (
	// BackoffExponential doubles, with equal jitter.
	BackoffExponential BackoffStrategy = "Exponential"
	// BackoffMultiplier grows by a chosen factor, with symmetric jitter.
	BackoffMultiplier BackoffStrategy = "Multiplier"
	// BackoffPowerOfTwo doubles from 1 second up to 1024, without jitter.
	BackoffPowerOfTwo BackoffStrategy = "PowerOfTwo"
	// BackoffLinear grows by base each time, without jitter.
	BackoffLinear BackoffStrategy = "Linear"
)
