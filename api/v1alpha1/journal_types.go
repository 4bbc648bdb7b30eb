package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Journal says whether changes of events are recorded: one record for each, with the status before and after, the
// attempt, the lease, the worker and the login, the transaction and the position of the database's WAL; never a payload.
type Journal struct {
	// enabled turns the journal on or off. On, an event writes about twice as much WAL.
	// What was recorded is kept for its retention also when it is turned off.
	// +required
	Enabled *bool `json:"enabled,omitempty"`

	// retention is how long a record is kept at least; whole days are removed. From
	// 24h to 87600h. Defaults to 168h.
	// +optional
	// +kubebuilder:default="168h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('24h') && duration(self) <= duration('87600h')",message="retention must be a duration from 24h to 87600h, such as 168h for 7 days"
	Retention metav1.Duration `json:"retention,omitzero"`
}
