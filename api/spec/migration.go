package spec

// MigrationPolicy says who migrates.
// +kubebuilder:validation:Enum=Job;None
type MigrationPolicy string

const (
	// MigrationJob lets the operator run a Job.
	MigrationJob MigrationPolicy = "Job"
	// MigrationNone leaves the schema to `dispatcher migrate up`.
	MigrationNone MigrationPolicy = "None"
)
