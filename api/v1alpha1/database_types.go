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
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z_][a-z0-9_]*$') && !self.startsWith('pg_')",message="schema must be a name of lower-case letters, digits and underscores, that starts with a letter or an underscore and not with pg_; such as outbox"
	Schema string `json:"schema,omitempty"`

	// tls says how the connection is secured.
	// +optional
	TLS *DatabaseTLS `json:"tls,omitempty"`

	// migration says who creates and upgrades the schema. Without it nobody does:
	// run `dispatcher migrate up` yourself.
	// +optional
	Migration *Migration `json:"migration,omitempty"`
}

// DatabaseSecret names a Secret in the same namespace, and its keys.
//
// +kubebuilder:validation:XValidation:rule="!has(self.dsnKey) || !has(self.keys)",message="dsnKey and keys exclude each other; keep dsnKey when the Secret holds a connection string, keys when it holds host, user and password apart"
type DatabaseSecret struct {
	// name is the Secret's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="name must be the name of a Secret: lower-case letters, digits, dashes and dots, such as orders-db"
	Name string `json:"name,omitempty"`

	// dsnKey is the key that holds a connection string, as a URL or as key=value
	// words. Of several hosts in it the one that takes writes is used, also after a
	// failover. When neither dsnKey nor keys is set: dsn.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._-]+$')",message="dsnKey must be a key of a Secret: letters, digits, dashes, dots and underscores"
	DSNKey string `json:"dsnKey,omitempty"`

	// keys name the keys that hold one part of the connection each, as in the
	// Secrets that database operators make. `keys: {}` fits those of
	// CloudNativePG.
	// +optional
	Keys *ConnectionKeys `json:"keys,omitempty"`
}

// ConnectionKeys are keys of a Secret.
//
// +kubebuilder:validation:XValidation:rule="[self.host, self.port, self.database, self.user, self.password].all(key, key.matches('^[A-Za-z0-9._-]+$'))",message="keys must be keys of a Secret: letters, digits, dashes, dots and underscores"
type ConnectionKeys struct {
	// host is the key of the host name. Several are separated by commas: of them the
	// one that takes writes is used, also after a failover. Defaults to host.
	// +optional
	// +kubebuilder:default=host
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Host string `json:"host,omitempty"`

	// port is the key of the port: one for all hosts, or as many with commas.
	// Defaults to port.
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
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || !self.mode.startsWith('verify-') || has(self.ca)",fieldPath=".ca",reason=FieldValueRequired,message="mode verify-ca and verify-full need a ca to verify with; set tls.ca to the Secret and the key that hold it"
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode.startsWith('verify-') || !has(self.ca)",fieldPath=".mode",message="only the modes verify-ca and verify-full verify with the ca; set one of them, or remove tls.ca"
type DatabaseTLS struct {
	// mode is disable, prefer, require, verify-ca or verify-full, as in libpq; it
	// overrides what the connection string says. When not set: verify-full with a
	// ca, else what the connection string says.
	// +optional
	// +kubebuilder:validation:Enum=disable;prefer;require;verify-ca;verify-full
	Mode string `json:"mode,omitempty"`

	// ca is the key of a Secret that holds the PEM certificates to verify the
	// server with.
	// +optional
	CA *SecretKey `json:"ca,omitempty"`
}

// SecretKey names one key of a Secret in the same namespace.
type SecretKey struct {
	// name is the Secret's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="name must be the name of a Secret: lower-case letters, digits, dashes and dots, such as orders-db"
	Name string `json:"name,omitempty"`

	// key is the key in it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._-]+$')",message="key must be a key of a Secret: letters, digits, dashes, dots and underscores"
	Key string `json:"key,omitempty"`
}

// SecretName names a Secret in the same namespace.
type SecretName struct {
	// name is the Secret's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="name must be the name of a Secret: lower-case letters, digits, dashes and dots, such as orders-db"
	Name string `json:"name,omitempty"`
}

// Migration says who creates and upgrades the outbox schema.
type Migration struct {
	// policy is Job (the operator runs a Job that migrates the schema, and grants
	// the dispatcher's login what it needs) or None. Defaults to Job.
	// +optional
	// +kubebuilder:default=Job
	Policy MigrationPolicy `json:"policy,omitempty"`

	// secret holds the login that the Job uses; it needs an owner's rights.
	// Without it the Job uses database.secret, whose login must then own the
	// schema.
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
