package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PostgresSink inserts events into a table of another database, effectively once: the event's id is the primary key of
// the table, and an existing one counts as delivered.
type PostgresSink struct {
	// database is the database of the table.
	// +required
	Database InboxDatabase `json:"database,omitzero"`

	// table is the table's name, with its schema. It is never created: the
	// documentation has the statement. Defaults to public.inbox_events.
	// +optional
	// +kubebuilder:default="public.inbox_events"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=127
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z_][a-z0-9_]{0,62}[.][a-z_][a-z0-9_]{0,62}$')",message="table must be schema.table of lower-case alphanumeric characters and underscores, such as public.inbox_events"
	Table string `json:"table,omitempty"`

	// timeout bounds a delivery. From 100ms to 10m. Defaults to 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('100ms') && duration(self) <= duration('10m')",message="timeout must be a duration from 100ms to 10m, such as 30s"
	Timeout metav1.Duration `json:"timeout,omitzero"`
}

// InboxDatabase says how to connect to the PostgreSQL of a sink.
//
// +kubebuilder:validation:XValidation:rule="has(self.secret) || has(self.server) && has(self.user) && (has(self.iam) || has(self.tls) && has(self.tls.clientCertificate))",message="a database needs a secret, or server and user with iam or tls.clientCertificate, which need no password; add what is missing"
// +kubebuilder:validation:XValidation:rule="!has(self.secret) || !has(self.secret.dsnKey) || !(has(self.server) || has(self.user))",message="server and user take the place of keys of the Secret, and a connection string has none; remove secret.dsnKey, or server and user"
// +kubebuilder:validation:XValidation:rule="!has(self.iam) || !has(self.tls) || !has(self.tls.mode) || !(self.tls.mode in ['disable', 'prefer'])",fieldPath=".tls",message="tls must not have the mode disable or prefer with iam, whose token is for connections with TLS; set mode to require or verify-full, or leave it out with a ca"
type InboxDatabase struct {
	// secret holds the login of the sink. It needs only the rights to insert into the
	// table, and to select its id. When not set: server and user are used, without a
	// password.
	// +optional
	Secret DatabaseSecret `json:"secret,omitzero"`

	// server is the address of the database, for a Secret that does not hold it. When
	// not set: the one in the Secret.
	// +optional
	Server *DatabaseServer `json:"server,omitempty"`

	// user is the login of the sink. When not set: the one in the Secret.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	User string `json:"user,omitempty"`

	// iam makes the password of each connection from the pod's identity in a cloud:
	// see spec.serviceAccount. When not set: the password is the one in the Secret.
	// +optional
	IAM *DatabaseIAM `json:"iam,omitempty"`

	// tls configures TLS for the connections.
	// +optional
	TLS *DatabaseTLS `json:"tls,omitempty"`
}
