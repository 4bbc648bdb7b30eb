package spec

import "time"

// PostgresSink inserts events into a table of another database, effectively once: the event's id is the primary key of
// the table, and an existing one counts as delivered.
type PostgresSink struct {
	// secretRef is the Secret with a connection string, as a URL or as key=value
	// words. With several hosts the one that accepts writes is used, also after a
	// failover. Its login needs only the rights to insert into the table, and to
	// select its id. With an authority in sink.tls the server is verified as with
	// sslmode=verify-full, unless the string has sslmode=verify-ca. Its key, when not
	// set: dsn.
	// +required
	SecretRef SecretRef `json:"secretRef,omitzero"`

	// iam makes the password of each connection from the pod's identity in a cloud:
	// see spec.pods.serviceAccount. Host, database and user are those of the connection
	// string. When not set: the password is the one in the connection string.
	// +optional
	IAM *IAM `json:"iam,omitempty"`

	// table is the table's name, with its schema. It is never created: the
	// documentation has the statement. Defaults to public.inbox_events.
	// +optional
	// +kubebuilder:default="public.inbox_events"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=127
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z_][a-z0-9_]{0,62}[.][a-z_][a-z0-9_]{0,62}$')",message="table must be schema.table of lower-case alphanumeric characters and underscores, such as public.inbox_events"
	Table string `json:"table,omitempty"`

	// DSNFile has what secretRef names, where a process reads it. DSN is a connection string in its place.
	DSNFile string `json:"-"`
	DSN     string `json:"-"`

	// Access is what the object has next to the kind: auth, tls, content mode and timeout of the sink.
	Access `json:"-"`
}

// Database returns how to connect to the table's database, for package database. Its Schema has no meaning.
func (s *PostgresSink) Database() Database {
	d := Database{DSN: s.DSN, DSNFile: s.DSNFile, Schema: "outbox", IAM: s.IAM}
	if t := s.TLS; t != nil {
		d.CAFile, d.ClientCertFile, d.ClientKeyFile = t.CAFile, t.ClientCertFile, t.ClientKeyFile
	}
	return d
}

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (s *PostgresSink) ApplyDefaults() {
	setDefault(&s.Table, "public.inbox_events")
	setDefault(&s.Timeout, Duration(30*time.Second))
}
