package config

import (
	"errors"
	"time"
)

// PostgresSink inserts events into a table of a PostgreSQL database, effectively once: the event's id is
// the table's primary key. Routes do not apply to it: there is one table.
type PostgresSink struct {
	// Database says how to reach the database with the table. Its members are those of the outbox's
	// database, without schema. Required.
	Database InboxDatabase `json:"database"`
	// Table is the table's name, with its schema. It is never created. Defaults to public.inbox_events.
	Table string `json:"table,omitempty"`
	// Timeout bounds a delivery, 100ms to 10m. Defaults to 30s.
	Timeout Duration `json:"timeout,omitempty"`
}

// InboxDatabase is a [Database] without an outbox. Exactly one of DSN, DSNFile and Connection must be
// set.
type InboxDatabase struct {
	// DSN is a connection string, for trying things out. Keep passwords out of it: use DSNFile.
	DSN string `json:"dsn,omitempty"`
	// DSNFile holds a connection string (URL or key=value).
	DSNFile string `json:"dsnFile,omitempty"`
	// Connection names one file for each part.
	Connection *Connection `json:"connection,omitempty"`
	// SSLMode is disable, prefer, require, verify-ca or verify-full. It overrides the DSN's.
	// Defaults to verify-full when caFile is set, else to what the DSN says.
	SSLMode string `json:"sslMode,omitempty"`
	// CAFile holds the PEM certificates that the server's certificate is checked against, in the
	// modes verify-ca and verify-full, which need it.
	CAFile string `json:"caFile,omitempty"`
	// ClientCertFile and ClientKeyFile are the certificate that the login shows, and its key, both or
	// neither. They are read for each connection.
	ClientCertFile string `json:"clientCertFile,omitempty"`
	ClientKeyFile  string `json:"clientKeyFile,omitempty"`
	// IAM makes the password of each connection from the identity that the process has in a cloud.
	// Defaults to none.
	IAM *IAM `json:"iam,omitempty"`
}

// Database returns d as the outbox's database has it.
func (d InboxDatabase) Database() Database {
	return Database{
		DSN: d.DSN, DSNFile: d.DSNFile, Connection: d.Connection, Schema: "outbox", SSLMode: d.SSLMode, CAFile: d.CAFile,
		ClientCertFile: d.ClientCertFile, ClientKeyFile: d.ClientKeyFile, IAM: d.IAM,
	}
}

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (s *PostgresSink) ApplyDefaults() {
	setDefault(&s.Table, "public.inbox_events")
	setDefault(&s.Timeout, Duration(30*time.Second))
	s.Database.Connection.applyDefaults()
	if s.Database.CAFile != "" {
		setDefault(&s.Database.SSLMode, "verify-full")
	}
}

const tableName = pattern(`^[a-z_][a-z0-9_]{0,62}\.[a-z_][a-z0-9_]{0,62}$`)

func (s *PostgresSink) validate(p *problems) {
	var own problems
	s.Database.Database().validate(&own)
	for _, err := range own.errs {
		p.errs = append(p.errs, errors.New("sink.postgres."+err.Error()))
	}
	p.when(!tableName.matches(s.Table), "sink.postgres.table", "is %q; write it as schema.table of lower-case alphanumeric characters and underscores, such as public.inbox_events", s.Table)
	p.duration("sink.postgres.timeout", s.Timeout, 100*time.Millisecond, 10*time.Minute)
}

// Validate is what [Config.Validate] says of this section. It fails as that does.
func (s *PostgresSink) Validate() error {
	var p problems
	s.validate(&p)
	return p.join()
}
