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
	SecretRef spec.SecretRef `json:"secretRef,omitzero"`

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
	CASecretRef *spec.SecretRef `json:"caSecretRef,omitempty"`

	// migrationSecretRef is the Secret with the login of a Job that creates and
	// upgrades the schema, and grants the login of the pods what it needs: a
	// connection string of the schema's owner. When its key is not set: dsn. When not
	// set: the operator does not migrate; run `dispatcher migrate up` yourself.
	// +optional
	MigrationSecretRef *spec.SecretRef `json:"migrationSecretRef,omitempty"`
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
	CASecretRef *spec.SecretRef `json:"caSecretRef,omitempty"`

	// caConfigMapRef is the same in a ConfigMap. When its key is not set: ca.crt.
	// +optional
	CAConfigMapRef *spec.ConfigMapRef `json:"caConfigMapRef,omitempty"`

	// clientCertSecretRef is the Secret with the certificate of the login, in PEM, for
	// a server that requires one (clientcert=verify-full, or the method cert). When
	// its key is not set: tls.crt. When not set: none.
	// +optional
	ClientCertSecretRef *spec.SecretRef `json:"clientCertSecretRef,omitempty"`

	// clientKeySecretRef is the Secret with the key of that certificate, in PEM. When
	// its key is not set: tls.key. When not set: that key of the same Secret.
	// +optional
	ClientKeySecretRef *spec.SecretRef `json:"clientKeySecretRef,omitempty"`
}
