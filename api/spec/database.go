package spec

import (
	"cmp"
	"strings"
)

// outbox is what the spec of an Outbox says of its database, its rows and their dead letters.
type outbox struct {
	databaseLogin
	Server      *server        `json:"server"`
	IAM         *IAM           `json:"iam"`
	Schema      string         `json:"schema"`
	TLS         *certificates  `json:"tls"`
	Migration   *migration     `json:"migration"`
	ReplayLogin *databaseLogin `json:"replayLogin"`
	Retention   Retention      `json:"retention"`
	Journal     *Journal       `json:"journal"`
}

// databaseLogin is a user, or the Secret with the login.
type databaseLogin struct {
	SecretRef  reference       `json:"secretRef"`
	SecretKeys *connectionKeys `json:"secretKeys"`
	User       string          `json:"user"`
	// The rest is for logins in addition to the dispatchers'.
	ClientCertSecretRef *reference `json:"clientCertSecretRef"`
	ClientKeySecretRef  *reference `json:"clientKeySecretRef"`
}

type connectionKeys struct{ Host, Port, Database, User, Password string }

type server struct {
	Host     string
	Port     int
	Database string
}

type migration struct {
	databaseLogin
	M10      *M10      `json:"m10"`
	Overview *Overview `json:"overview"`
	Tenants  Tenants   `json:"tenants"`
}

// ownDatabase is the field of a dispatcher's own database.
const ownDatabase = "spec.database"

// database is where the events are, and the field of a spec that says it: in the Outbox that the dispatcher refers to,
// else in one like its own database. It is nil when the Outbox that it refers to is not there.
func (o Objects) database() (field string, spec map[string]any, db *outbox, err error) {
	if own, ok := o.Dispatcher["database"].(map[string]any); ok {
		spec = map[string]any{"secretRef": own["secretRef"], "schema": own["schema"]}
		if own["caSecretRef"] != nil {
			spec["tls"] = map[string]any{"caSecretRef": own["caSecretRef"]}
		}
		if own["migrationSecretRef"] != nil {
			spec["migration"] = map[string]any{"secretRef": own["migrationSecretRef"]}
		}
		field = ownDatabase
	} else if o.Outbox != nil {
		field, spec = o.OutboxField, o.Outbox
	}
	if spec == nil {
		return "", nil, nil, nil
	}
	db = &outbox{}
	return field, spec, db, loosely(spec, db)
}

// ownNames are the names that fields of an Outbox have in a dispatcher's own database.
var ownNames = strings.NewReplacer(ownDatabase+".tls.", ownDatabase+".", ownDatabase+".migration.secretRef", ownDatabase+".migrationSecretRef")

// renamed are the refs with the names that their fields have in a dispatcher's own database.
func renamed(refs []Ref) []Ref {
	for i := range refs {
		refs[i].Field = ownNames.Replace(refs[i].Field)
	}
	return refs
}

// database is how the dispatchers reach the outbox. field is the field of the spec that says it.
func (f *files) database(field string, d *outbox) Database {
	c := Database{Schema: d.Schema}
	c.DSNFile, c.Connection = f.connection(field, d, d.databaseLogin)
	f.secure(field, d, &c)
	return c
}

// migration is how migrations reach the outbox: as the dispatchers do, but for a login of their own.
func (f *files) migration(field string, d *outbox) Database {
	c := f.database(field, d)
	own := d.Migration
	if own == nil {
		return c
	}
	if own.SecretRef != (reference{}) || own.User != "" {
		c.DSNFile, c.Connection = f.connection(field+".migration", d, own.databaseLogin)
	}
	f.present(field+".migration", own.databaseLogin, &c)
	c.M10, c.Overview, c.Tenants = own.M10, own.Overview, own.Tenants
	return c
}

// replay is how replays reach the outbox: as the dispatchers do, but with a login of their own and with nothing of theirs.
func (f *files) replay(field string, d *outbox) Database {
	own, c := d.ReplayLogin, Database{Schema: d.Schema}
	c.DSNFile, c.Connection = f.connection(field+".replayLogin", d, *own)
	bare := *d
	if own.ClientCertSecretRef != nil && d.TLS != nil {
		tls := *d.TLS
		tls.ClientCertSecretRef = nil
		bare.TLS = &tls
	}
	f.secure(field, &bare, &c)
	f.present(field+".replayLogin", *own, &c)
	return c
}

// present is the client's certificate of a login of its own.
func (f *files) present(field string, l databaseLogin, c *Database) {
	if l.ClientCertSecretRef == nil {
		return
	}
	tls := f.tls(field, certificates{ClientCertSecretRef: l.ClientCertSecretRef, ClientKeySecretRef: l.ClientKeySecretRef})
	c.ClientCertFile, c.ClientKeyFile = tls.ClientCertFile, tls.ClientKeyFile
}

// connection is a connection string's file, or the parts of a connection: of the spec, or in the Secret.
func (f *files) connection(field string, d *outbox, l databaseLogin) (dsnFile string, c *Connection) {
	secret, keys := l.SecretRef, connectionKeys{}
	if secret.Key != "" || d.Server == nil && l.SecretKeys == nil && l.User == "" {
		return f.add(Ref{Secret: secret.Name, Key: cmp.Or(secret.Key, "dsn"), DSN: true, Field: field + ".secretRef"}), nil
	}
	if l.SecretKeys != nil {
		keys = *l.SecretKeys
	}
	part := func(key, byDefault string) string {
		return f.secret(field+".secretRef", reference{Name: secret.Name, Key: key}, byDefault)
	}
	c = &Connection{User: l.User}
	if s := d.Server; s != nil {
		c.Host, c.Port, c.Database = s.Host, s.Port, s.Database
	} else {
		c.HostFile, c.PortFile, c.DatabaseFile = part(keys.Host, "host"), part(keys.Port, "port"), part(keys.Database, "dbname")
	}
	if l.User == "" {
		c.UserFile = part(keys.User, "username")
	}
	if d.IAM == nil && secret.Name != "" {
		c.PasswordFile = part(keys.Password, "password")
	}
	return "", c
}

// secure is what the database's tls and iam say.
func (f *files) secure(field string, d *outbox, c *Database) {
	if t := d.TLS; t != nil {
		tls := f.tls(field+".tls", *t)
		c.SSLMode, c.CAFile, c.ClientCertFile, c.ClientKeyFile = t.Mode, tls.CAFile, tls.ClientCertFile, tls.ClientKeyFile
	}
	c.IAM = d.IAM
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
