package spec

import "time"

// PostgresSink inserts events into a table of a PostgreSQL database, effectively once: the event's id is
// the table's primary key. Routes do not apply to it: there is one table.
//
// +kubebuilder:object:generate=false
type PostgresSink struct {
	// DSN is a connection string, for trying things out. Keep passwords out of it: use DSNFile. Exactly one of DSN and
	// DSNFile must be set.
	DSN string `json:"dsn,omitempty"`
	// DSNFile holds a connection string (URL or key=value). With a caFile in tls the server is verified as with
	// sslmode=verify-full, unless the string has sslmode=verify-ca.
	DSNFile string `json:"dsnFile,omitempty"`
	// IAM makes the password of each connection from the identity that the process has in a cloud.
	// Defaults to none.
	IAM *IAM `json:"iam,omitempty"`
	// Table is the table's name, with its schema. It is never created. Defaults to public.inbox_events.
	Table string `json:"table,omitempty"`
	// Access is what the file has next to the kind: auth, tls and timeout of the sink.
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
