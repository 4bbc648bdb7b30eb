package v1alpha1

// NATSSink publishes to JetStream.
type NATSSink struct{}
