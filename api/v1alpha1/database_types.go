package v1alpha1

// Database says how to reach the outbox's PostgreSQL.
type Database struct {
	// secret holds the dispatcher's login. It needs only the rights that
	// `dispatcher migrate grants` prints.
	// +required
	Secret DatabaseSecret `json:"secret,omitzero"`

	// schema is the PostgreSQL schema of the outbox tables. Defaults to outbox.
	// +optional
	// +kubebuilder:default=outbox
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z_][a-z0-9_]*$`
	Schema string `json:"schema,omitempty"`

	// tls says how the connection is secured.
	// +optional
	TLS *DatabaseTLS `json:"tls,omitempty"`

	// migration says who creates and upgrades the schema. Without it nobody does: run
	// `dispatcher migrate up` yourself.
	// +optional
	Migration *Migration `json:"migration,omitempty"`
}

// DatabaseSecret names a Secret in the same namespace, and its keys.
//
// +kubebuilder:validation:AtMostOneOf=dsnKey;keys
type DatabaseSecret struct {
	// name is the Secret's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// dsnKey is the key that holds a connection string, as a URL or as key=value words.
	// Defaults to dsn, when keys is not set.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	DSNKey string `json:"dsnKey,omitempty"`

	// keys name the keys that hold one part of the connection each, as in the Secrets that database
	// operators make.
	// +optional
	Keys *ConnectionKeys `json:"keys,omitempty"`
}

// ConnectionKeys are keys of a Secret.
type ConnectionKeys struct {
	// host is the key of the host name. Defaults to host.
	// +optional
	// +kubebuilder:default=host
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Host string `json:"host,omitempty"`
	// port is the key of the port. Defaults to port.
	// +optional
	// +kubebuilder:default=port
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Port string `json:"port,omitempty"`
	// database is the key of the database's name. Defaults to dbname.
	// +optional
	// +kubebuilder:default=dbname
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Database string `json:"database,omitempty"`
	// user is the key of the user name. Defaults to username.
	// +optional
	// +kubebuilder:default=username
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	User string `json:"user,omitempty"`
	// password is the key of the password. Defaults to password.
	// +optional
	// +kubebuilder:default=password
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Password string `json:"password,omitempty"`
}

// DatabaseTLS says how the connection is secured.
//
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || !(self.mode in ['verify-ca', 'verify-full']) || has(self.ca)",fieldPath=".ca",message="mode verify-ca and verify-full need a ca to verify against; set tls.ca to the key of a Secret that holds it"
type DatabaseTLS struct {
	// mode is disable, prefer, require, verify-ca or verify-full, as in libpq. It overrides what the
	// connection string says. Defaults to verify-full when ca is set.
	// +optional
	// +kubebuilder:validation:Enum=disable;prefer;require;verify-ca;verify-full
	Mode string `json:"mode,omitempty"`

	// ca is the key of a Secret that holds the PEM certificates to verify the server with.
	// +optional
	CA *SecretKey `json:"ca,omitempty"`
}

// SecretKey names one key of a Secret in the same namespace.
type SecretKey struct {
	// name is the Secret's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// key is the key in it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key,omitempty"`
}

// SecretName names a Secret in the same namespace.
type SecretName struct {
	// name is the Secret's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// Migration says who creates and upgrades the outbox schema.
type Migration struct {
	// policy is Job (the operator runs a Job that migrates the schema, and grants the dispatcher's
	// login what it needs) or None. Defaults to Job.
	// +optional
	// +kubebuilder:default=Job
	Policy MigrationPolicy `json:"policy,omitempty"`

	// secret holds the login that the Job uses; it needs an owner's rights. Defaults to
	// database.secret, whose login must then own the schema.
	// +optional
	Secret *DatabaseSecret `json:"secret,omitempty"`
}

// MigrationPolicy says who migrates.
// +kubebuilder:validation:Enum=Job;None
type MigrationPolicy string

const (
	// MigrationJob lets the operator run a Job.
	MigrationJob MigrationPolicy = "Job"
	// MigrationNone leaves it to somebody else.
	MigrationNone MigrationPolicy = "None"
)
