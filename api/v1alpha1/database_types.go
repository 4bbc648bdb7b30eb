package v1alpha1

import (
	"github.com/outbox-operator/outbox-operator/api/spec"
)

// DispatcherDatabase is the outbox of a dispatcher that shares it with no Outbox. Its rows are kept as long as those of an
// Outbox by default. Whatever is not here needs an Outbox.
type DispatcherDatabase struct {
	// secretRef is the Secret with the login of the pods: a connection string, as a
	// URL or as key=value words. Of several hosts the one that accepts writes is used,
	// also after a failover. When its key is not set: dsn. The Secrets of
	// CloudNativePG have the key uri.
	// +required
	SecretRef SecretRef `json:"secretRef,omitzero"`

	// schema is the PostgreSQL schema of the outbox tables. Defaults to outbox.
	// +optional
	// +kubebuilder:default=outbox
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z_][a-z0-9_]*$') && !self.startsWith('pg_')",message="schema must be a name of lower-case alphanumeric characters and underscores, that does not start with a digit or pg_, such as outbox"
	Schema string `json:"schema,omitempty"`

	// caSecretRef is the Secret with the PEM certificates that the server is verified
	// with, and the host's name too. When its key is not set: ca.crt. When not set:
	// the mode in the connection string.
	// +optional
	CASecretRef *SecretRef `json:"caSecretRef,omitempty"`

	// migrationSecretRef is the Secret with the login of a Job that creates and
	// upgrades the schema, and grants the login of the pods what it needs: a
	// connection string of the schema's owner. When its key is not set: dsn. When not
	// set: the operator does not migrate; run `dispatcher migrate up` yourself.
	// +optional
	MigrationSecretRef *SecretRef `json:"migrationSecretRef,omitempty"`
}

// DatabaseServer is the address of a database.
type DatabaseServer struct {
	// host is the host name, or several separated by commas. Of several the one that
	// accepts writes is used, also after a failover.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._:-]+(,[A-Za-z0-9._:-]+)*$')",message="host must be a host name, or several with commas between them and no spaces, such as orders-db-rw.shop"
	Host string `json:"host,omitempty"`

	// port is the port of each host. From 1 to 65535. Defaults to 5432.
	// +optional
	// +kubebuilder:default=5432
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// database is the name of the database.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Database string `json:"database,omitempty"`
}

// DatabaseIAM is a login with the pod's identity in a cloud.
//
// +kubebuilder:validation:XValidation:rule="!has(self.region) || self.provider == 'AWS'",fieldPath=".region",message="region belongs to provider AWS; remove it"
type DatabaseIAM struct {
	// provider is AWS, Google or Azure.
	// +required
	// +kubebuilder:validation:Enum=AWS;Google;Azure
	Provider string `json:"provider,omitempty"`

	// region is the region of the database, for AWS. When not set: AWS_REGION in the
	// environment of the pods.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z]{2,4}(-[a-z]+)+-[0-9]+$')",message="region must be the name of a region, such as eu-west-1"
	Region string `json:"region,omitempty"`
}

// ConnectionKeys are keys of a Secret.
//
// +kubebuilder:validation:XValidation:rule="[self.host, self.port, self.database, self.user, self.password].all(key, key.matches('^[A-Za-z0-9._-]+$'))",message="keys must be keys of a Secret: alphanumeric characters, dashes, dots and underscores"
type ConnectionKeys struct {
	// host is the key of the host name, or of several separated by commas. Of several
	// the one that accepts writes is used, also after a failover. Defaults to host.
	// +optional
	// +kubebuilder:default=host
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Host string `json:"host,omitempty"`

	// port is the key of the port: one for all hosts, or one for each, separated by
	// commas. Defaults to port.
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

// DatabaseTLS configures TLS for the connections.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.caSecretRef) && has(self.caConfigMapRef))",message="caSecretRef and caConfigMapRef exclude each other; keep the one that holds the certificates"
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode.startsWith('Verify') == (has(self.caSecretRef) || has(self.caConfigMapRef))",fieldPath=".mode",message="the modes VerifyCA and VerifyFull verify with the certificates of caSecretRef or caConfigMapRef, and the others with none; set one of both, or another mode"
// +kubebuilder:validation:XValidation:rule="!has(self.clientKeySecretRef) || has(self.clientCertSecretRef)",fieldPath=".clientKeySecretRef",message="clientKeySecretRef is the key of a certificate; set clientCertSecretRef, or remove clientKeySecretRef"
type DatabaseTLS struct {
	// mode is Disable, Prefer, Require, VerifyCA or VerifyFull, as sslmode in libpq.
	// It overrides the mode in the connection string. When not set: VerifyFull with
	// caSecretRef or caConfigMapRef, else the mode in the connection string.
	// +optional
	// +kubebuilder:validation:Enum=Disable;Prefer;Require;VerifyCA;VerifyFull
	Mode string `json:"mode,omitempty"`

	// caSecretRef is the Secret with the PEM certificates that the server is verified
	// with. When its key is not set: ca.crt.
	// +optional
	CASecretRef *SecretRef `json:"caSecretRef,omitempty"`

	// caConfigMapRef is the same in a ConfigMap. When its key is not set: ca.crt.
	// +optional
	CAConfigMapRef *ConfigMapRef `json:"caConfigMapRef,omitempty"`

	// clientCertSecretRef is the Secret with the certificate of the login, in PEM, for
	// a server that requires one (clientcert=verify-full, or the method cert). When
	// its key is not set: tls.crt. When not set: none.
	// +optional
	ClientCertSecretRef *SecretRef `json:"clientCertSecretRef,omitempty"`

	// clientKeySecretRef is the Secret with the key of that certificate, in PEM. When
	// its key is not set: tls.key. When not set: that key of the same Secret.
	// +optional
	ClientKeySecretRef *SecretRef `json:"clientKeySecretRef,omitempty"`
}

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
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('24h') && duration(self) <= duration('87600h')",message="retention must be a duration from 24h to 87600h, such as 168h for 7 days"
	Retention spec.Duration `json:"retention,omitzero"`
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
