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

const tableName = pattern(`^[a-z_][a-z0-9_]{0,62}\.[a-z_][a-z0-9_]{0,62}$`)

func (s *PostgresSink) validate(p *problems) {
	p.exactlyOne("sink.postgres", map[string]bool{"dsn": s.DSN != "", "dsnFile": s.DSNFile != ""})
	s.IAM.validate(p, "sink.postgres.iam")
	p.when(!tableName.matches(s.Table), "sink.postgres.table", "is %q; write it as schema.table of lower-case alphanumeric characters and underscores, such as public.inbox_events", s.Table)
	s.validateTimeout(p)
	s.contentModes(p, "postgres")
	p.when(s.Auth != nil, "sink.auth", "is not used by postgres; put the login into the connection string, or set iam")
	s.TLS.validate(p, "sink.tls")
	p.when(s.TLS != nil && s.TLS.CAFile == "" && s.TLS.ClientCertFile == "", "sink.tls", "has neither caFile nor clientCertFile; set one of them, or remove it: the connection string says sslmode")
	p.when(s.TLS != nil && s.TLS.ServerName != "", "sink.tls.serverName", "is not used by postgres; name the server by its host in the connection string")
}

// Validate reports all that is wrong with this section, each with the field and the remedy, as [Config.Validate] does.
func (s *PostgresSink) Validate() error { return validated(s) }
