package spec

import (
	"math"
	"strconv"
)

// Objective is how fresh events must be.
type Objective struct {
	// freshness is the time within which an event is to be delivered, from when it is
	// due first. From 1s to 168h. Defaults to 5m.
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('168h')",message="freshness must be a duration from 1s to 168h, such as 60s"
	Freshness Duration `json:"freshness,omitzero"`

	// target is the percentage of the time in which no event is older than freshness,
	// a decimal from "90" to "99.95". Defaults to 99.9.
	// +optional
	// +kubebuilder:default="99.9"
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:XValidation:rule="self.matches('^9[0-9]([.][0-9]{1,2})?$') && double(self) <= 99.95",message="target must be a decimal from \"90\" to \"99.95\" in quotes, such as \"99.9\""
	Target string `json:"target,omitempty"`
}

// Ratio is target as a number from 0 to 1, and 0 for one that is not set.
func (o Objective) Ratio() float64 {
	percent, _ := strconv.ParseFloat(o.Target, 64) // its rule lets no other text pass
	return math.Round(percent*100) / 10_000
}
