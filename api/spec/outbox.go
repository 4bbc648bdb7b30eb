package spec

// OutboxRef names an Outbox in the same Kubernetes namespace.
type OutboxRef struct {
	// name is the Outbox's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=48
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Label().validate(self).hasValue()",message="name must be the name of an Outbox: lower-case alphanumeric characters and dashes, such as orders"
	Name string `json:"name,omitempty"`
}
