package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Journal says whether changes of events are recorded. A record has the status before and after, the attempt, the
// lease, the worker and the login, the transaction and the position in the database's WAL; never a payload.
type Journal struct {
	// mode is Enabled or Disabled. Enabled, an event writes about twice as much WAL.
	// Disabled, existing records are kept for retention.
	// +required
	Mode JournalMode `json:"mode,omitempty"`

	// retention is the least time that a record is kept; records are removed by the
	// day. From 24h to 87600h. Defaults to 168h.
	// +optional
	// +kubebuilder:default="168h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('24h') && duration(self) <= duration('87600h')",message="retention must be a duration from 24h to 87600h, such as 168h for 7 days"
	Retention metav1.Duration `json:"retention,omitzero"`
}

// JournalMode says whether changes are recorded.
// +kubebuilder:validation:Enum=Enabled;Disabled
type JournalMode string

const (
	// JournalEnabled records each change.
	JournalEnabled JournalMode = "Enabled"
	// JournalDisabled records none.
	JournalDisabled JournalMode = "Disabled"
)
