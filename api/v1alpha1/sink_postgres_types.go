package v1alpha1

// PostgresSink inserts into the inbox table of another database, effectively once.
type PostgresSink struct{}
