package spec

import (
	"cmp"
	"strings"
	"time"
)

// ownDatabase is the field of a dispatcher's own database.
const ownDatabase = "spec.database"

// database is where the events are, and the field of a spec that says it: in the Outbox that the dispatcher refers to,
// else in one like its own database. It is nil when the Outbox that it refers to is not there.
func (o Objects) database() (field string, db *Outbox) {
	if o.Dispatcher == nil || o.Dispatcher.Database == nil {
		return o.OutboxField, o.Outbox
	}
	own := o.Dispatcher.Database.Outbox()
	return ownDatabase, &own
}

// Outbox is the spec of an Outbox that says the same, with the retention that an Outbox has by default.
func (d *DispatcherDatabase) Outbox() Outbox {
	delivered := Duration(7 * 24 * time.Hour)
	o := Outbox{SecretRef: d.SecretRef, Schema: d.Schema, Retention: Retention{Delivered: &delivered, DeadResolved: Duration(30 * 24 * time.Hour)}}
	if d.CASecretRef != nil {
		o.TLS = &DatabaseTLS{CASecretRef: d.CASecretRef}
	}
	if d.MigrationSecretRef != nil {
		o.Migration = &Migration{SecretRef: d.MigrationSecretRef}
	}
	return o
}

// ownNames are the names that fields of an Outbox have in a dispatcher's own database.
var ownNames = strings.NewReplacer(ownDatabase+".tls.", ownDatabase+".", ownDatabase+".migration.secretRef", ownDatabase+".migrationSecretRef")

// login is a user, or the Secret with the login, which field names.
type login struct {
	field  string
	secret *SecretRef
	keys   *ConnectionKeys
	user   string
	// The rest is for logins in addition to the dispatchers'.
	cert, key *SecretRef
}

// database is how the dispatchers reach the outbox. field is the field of the spec that says it.
func (f *files) database(field string, d *Outbox) Database {
	c := Database{Schema: d.Schema}
	own := login{field: field, keys: d.SecretKeys, user: d.User}
	if d.SecretRef.Name != "" {
		own.secret = &d.SecretRef
	}
	f.connection(&c, d, own)
	f.secure(&c, field, d)
	return c
}

// migration is how migrations reach the outbox: as the dispatchers do, but for a login of their own.
func (f *files) migration(field string, d *Outbox) Database {
	c, m := f.database(field, d), d.Migration
	if m == nil {
		return c
	}
	own := login{field + ".migration", m.SecretRef, m.SecretKeys, m.User, m.ClientCertSecretRef, m.ClientKeySecretRef}
	if own.secret != nil || own.user != "" {
		f.connection(&c, d, own)
	}
	f.present(&c, own)
	c.M10, c.Overview, c.Tenants = m.M10, m.Overview, m.Tenants
	return c
}

// replay is how replays reach the outbox: as the dispatchers do, but with a login of their own and with nothing of theirs.
func (f *files) replay(field string, d *Outbox) Database {
	r, c := d.ReplayLogin, Database{Schema: d.Schema}
	own := login{field + ".replayLogin", r.SecretRef, r.SecretKeys, r.User, r.ClientCertSecretRef, r.ClientKeySecretRef}
	f.connection(&c, d, own)
	if own.cert != nil && d.TLS != nil {
		d.TLS.ClientCertSecretRef = nil // d is a copy
	}
	f.secure(&c, field, d)
	f.present(&c, own)
	return c
}

// present is the client's certificate of a login of its own.
func (f *files) present(c *Database, l login) {
	if l.cert != nil {
		c.ClientCertFile, c.ClientKeyFile = f.certificate(l.field, l.cert, l.key)
	}
}

// connection is a connection string's file, or the parts of a connection: of the spec, or in the Secret.
func (f *files) connection(c *Database, d *Outbox, l login) {
	secret, keys := SecretRef{}, ConnectionKeys{}
	if l.secret != nil {
		secret = *l.secret
	}
	c.DSNFile, c.Connection = "", nil
	if field := l.field + ".secretRef"; secret.Key != "" || d.Server == nil && l.keys == nil && l.user == "" {
		c.DSNFile = f.add(Ref{Secret: secret.Name, Key: cmp.Or(secret.Key, "dsn"), DSN: true, Field: ownNames.Replace(field)})
		return
	}
	if l.keys != nil {
		keys = *l.keys
	}
	part := func(key, byDefault string) string {
		return f.secret(l.field+".secretRef", &SecretRef{Name: secret.Name, Key: key}, byDefault)
	}
	to := &Connection{User: l.user}
	if s := d.Server; s != nil {
		to.Host, to.Port, to.Database = s.Host, int(s.Port), s.Database
	} else {
		to.HostFile, to.PortFile, to.DatabaseFile = part(keys.Host, "host"), part(keys.Port, "port"), part(keys.Database, "dbname")
	}
	if l.user == "" {
		to.UserFile = part(keys.User, "username")
	}
	if d.IAM == nil && secret.Name != "" {
		to.PasswordFile = part(keys.Password, "password")
	}
	c.Connection = to
}

// secure is what the database's tls and iam say.
func (f *files) secure(c *Database, field string, d *Outbox) {
	c.IAM = d.IAM
	t := d.TLS
	if t == nil {
		return
	}
	field += ".tls"
	c.CAFile = cmp.Or(f.secret(ownNames.Replace(field+".caSecretRef"), t.CASecretRef, "ca.crt"), f.configMap(field+".caConfigMapRef", t.CAConfigMapRef, "ca.crt"))
	c.ClientCertFile, c.ClientKeyFile = f.certificate(field, t.ClientCertSecretRef, t.ClientKeySecretRef)
	if c.SSLMode = t.Mode; c.CAFile != "" {
		c.SSLMode = cmp.Or(c.SSLMode, "VerifyFull")
	}
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

// IAM is a login with the pod's identity in a cloud.
//
// +kubebuilder:validation:XValidation:rule="!has(self.region) || self.provider == 'AWS'",fieldPath=".region",message="region belongs to provider AWS; remove it"
type IAM struct {
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
