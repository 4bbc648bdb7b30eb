package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// DeadGroup counts unresolved dead rows that have the same topic, reason and cause.
type DeadGroup struct {
	// group identifies the group, by 8 hex digits. Commands that read, replay or
	// discard dead letters accept it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	Group string `json:"group"`

	// topic is the events' topic.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Topic string `json:"topic,omitempty"`

	// reason is why the events are dead: MaxRetriesExceeded, PoisonMessage,
	// SchemaValidationFailed, ProcessingTimeout or PermanentFailure.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`

	// class is what failed, in one word: the kind of the sink, schema, rule, route,
	// mask, message, decode, handler or lease.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Class string `json:"class,omitempty"`

	// code is the destination's own code, or the name of the rule, such as 422.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Code string `json:"code,omitempty"`

	// place is the place in the event, such as /items/*/price.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Place string `json:"place,omitempty"`

	// count is the number of events.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Count int64 `json:"count"`

	// estimated is true when count is an estimate.
	// +optional
	Estimated bool `json:"estimated,omitempty"`

	// since is when the first of them became dead.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`

	// last is when the last of them became dead.
	// +optional
	Last *metav1.Time `json:"last,omitempty"`
}
