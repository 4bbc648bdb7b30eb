package spec

// ConsumerPolicy says which consumers an event needs to be delivered.
// +kubebuilder:validation:Enum=Any;Verified
type ConsumerPolicy string

const (
	// ConsumersAny delivers every event.
	ConsumersAny ConsumerPolicy = "Any"
	// ConsumersVerified delivers events of types that a verified consumer registers.
	ConsumersVerified ConsumerPolicy = "Verified"
)
