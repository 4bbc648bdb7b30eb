// Package spec is what an OutboxDispatcher, an Outbox and what they refer to say, as plain data: the fields of the objects, with
// the rules, bounds and defaults that the API server holds them to. A process reads the same objects from a file.
//
// Secrets are never in it: it names the keys that hold them. A process finds these as files, whose paths [Objects.Config] sets.
package spec

// Config is what a process runs with: the objects, and what is only the process's.
type Config struct {
	// Name identifies the dispatcher in logs and metrics. Required.
	Name string
	// Dispatcher is the spec of the OutboxDispatcher.
	Dispatcher
	// Database is how to reach the outbox. Required.
	Database Database
	// ReplayLogin is whether Database has the login that the Outbox has for replays.
	ReplayLogin bool
	// Notify, Retention and Journal are the Outbox's.
	Notify    *Notify
	Retention Retention
	Journal   *Journal
	// StateFile is the file that holds Running or Paused. It is read again each second, so that a pause needs
	// no restart. It overrides state, which holds until the file has said one of them. Defaults to none.
	StateFile string
	// VerifiedTypesFile is the file that lists the event types which are delivered, one a line, each as it is or the
	// beginning of some with * at its end: those with a verified consumer (CONTRACT C-82). It is read again each
	// second. An event of another type pauses its topic until the file lists the type. Nothing is delivered before the
	// file could be read once; what it said last holds when it cannot be read later. Defaults to none: all types are
	// delivered.
	VerifiedTypesFile string
}

// Database says how to reach the outbox. Exactly one of DSN, DSNFile and Connection must be set. Of
// several hosts the one that takes writes is used, also after a failover.
type Database struct {
	// DSN is a connection string, for trying things out. Keep passwords out of it: use DSNFile.
	DSN string
	// DSNFile holds a connection string (URL or key=value).
	DSNFile string
	// Connection names one file for each part.
	Connection *Connection
	// Schema is the PostgreSQL schema of the outbox tables: lower-case alphanumeric
	// characters and underscores. Defaults to outbox.
	Schema string
	// SSLMode is Disable, Prefer, Require, VerifyCA or VerifyFull: libpq's sslmode. It overrides the DSN's.
	// Defaults to VerifyFull when caFile is set, else to what the DSN says.
	SSLMode string
	// CAFile holds the PEM certificates that the server's certificate is checked against, in the
	// modes VerifyCA and VerifyFull, which need it.
	CAFile string
	// ClientCertFile and ClientKeyFile are the certificate that the login shows, and its key, both or
	// neither. They are read for each connection.
	ClientCertFile string
	ClientKeyFile  string
	// IAM makes the password of each connection from the identity that the process has in a cloud.
	// Defaults to none.
	IAM *IAM
	// M10 makes `dispatcher migrate up` install what workers of the M10 outbox contract call. Dispatchers
	// ignore it. Defaults to none.
	M10 *M10
	// Overview makes `dispatcher migrate up` make the view outbox.events, on which producers of the Overview outbox
	// contract insert. Dispatchers ignore it. Defaults to none.
	Overview *Overview
	// Tenants is Indexed to make `dispatcher migrate up` make the index that delivery.fairness needs. It stays when this is
	// removed. Dispatchers ignore it. Defaults to none.
	Tenants Tenants
}

// Connection is the parts of a connection: as they are, or in files, as a mounted Secret has them. Each of
// host, database and user is one or the other. The password is only in a file, and not needed with
// an IAM login or a client's certificate. The port defaults to 5432. Several hosts are separated by
// commas, with one port or as many: see [Database].
type Connection struct {
	Host         string
	HostFile     string
	Port         int
	PortFile     string
	Database     string
	DatabaseFile string
	User         string
	UserFile     string
	PasswordFile string
}

// The providers of [IAM].
const (
	IAMAWS    = "AWS"
	IAMGoogle = "Google"
	IAMAzure  = "Azure"
)
