package desired

import (
	"cmp"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// database is how the dispatchers reach the outbox. field is the field of the spec that says it.
func (m *mounts) database(field string, d *v1alpha1.OutboxSpec) config.Database {
	c := config.Database{Schema: d.Schema}
	c.DSNFile, c.Connection = m.connection(field+".secret", d, d.Secret, d.User)
	m.secure(field, d, &c)
	return c
}

// migration is how the migration Job reaches the outbox: as the dispatchers do, but for its own login.
func (m *mounts) migration(field string, d *v1alpha1.OutboxSpec) config.Database {
	c := m.database(field, d)
	own := d.Migration
	if own == nil {
		return c
	}
	login := &mounts{dir: "migration"}
	if hasOwnLogin(own) {
		var secret v1alpha1.DatabaseSecret
		if own.Secret != nil {
			secret = *own.Secret
		}
		c.DSNFile, c.Connection = login.connection(field+".migration.secret", d, secret, own.User)
	}
	if own.ClientCertificate != nil {
		c.ClientCertFile, c.ClientKeyFile = login.clientCertificate(field+".migration.clientCertificate", own.ClientCertificate)
	}
	m.refs = append(m.refs, login.refs...)
	c.M10, c.Overview = converted[*config.M10](own.M10), converted[*config.Overview](own.Overview)
	return c
}

// replayDatabase is how the Job of a replay reaches the outbox: as the dispatchers do, but with a login of its own and
// with nothing of theirs.
func (m *mounts) replayDatabase(field string, d *v1alpha1.OutboxSpec) config.Database {
	own, c := d.ReplayLogin, config.Database{Schema: d.Schema}
	var secret v1alpha1.DatabaseSecret
	if own.Secret != nil {
		secret = *own.Secret
	}
	c.DSNFile, c.Connection = m.connection(field+".replayLogin.secret", d, secret, own.User)
	if own.ClientCertificate == nil {
		m.secure(field, d, &c)
		return c
	}
	bare := d.DeepCopy()
	if bare.TLS != nil {
		bare.TLS.ClientCertificate = nil
	}
	m.secure(field, bare, &c)
	c.ClientCertFile, c.ClientKeyFile = m.clientCertificate(field+".replayLogin.clientCertificate", own.ClientCertificate)
	return c
}

// hasOwnLogin reports whether the migration has a login of its own.
func hasOwnLogin(m *v1alpha1.Migration) bool { return m.Secret != nil || m.User != "" }

// connection is a connection string's file, or the parts of a connection: of the spec, or in the secret.
func (m *mounts) connection(field string, d *v1alpha1.OutboxSpec, secret v1alpha1.DatabaseSecret, user string) (dsnFile string, c *config.Connection) {
	if secret.DSNKey != "" || d.Server == nil && secret.Keys == nil && user == "" {
		return m.key(field, secret.Name, cmp.Or(secret.DSNKey, "dsn"), "dsn"), nil
	}
	keys := v1alpha1.ConnectionKeys{}
	if secret.Keys != nil {
		keys = *secret.Keys
	}
	c = &config.Connection{User: user}
	if s := d.Server; s != nil {
		c.Host, c.Port, c.Database = s.Host, int(s.Port), s.Database
	} else {
		c.HostFile = m.key(field, secret.Name, cmp.Or(keys.Host, "host"), "host")
		c.PortFile = m.key(field, secret.Name, cmp.Or(keys.Port, "port"), "port")
		c.DatabaseFile = m.key(field, secret.Name, cmp.Or(keys.Database, "dbname"), "dbname")
	}
	if user == "" {
		c.UserFile = m.key(field, secret.Name, cmp.Or(keys.User, "username"), "username")
	}
	if d.IAM == nil && (secret.Name != "" || secret.Keys != nil) {
		c.PasswordFile = m.key(field, secret.Name, cmp.Or(keys.Password, "password"), "password")
	}
	return "", c
}

// secure is what the database's tls and iam say.
func (m *mounts) secure(field string, d *v1alpha1.OutboxSpec, c *config.Database) {
	if tls := d.TLS; tls != nil {
		c.SSLMode = tls.Mode
		c.CAFile = m.ca(field+".tls.ca", tls.CA)
		c.ClientCertFile, c.ClientKeyFile = m.clientCertificate(field+".tls.clientCertificate", tls.ClientCertificate)
	}
	c.IAM = converted[*config.IAM](d.IAM)
}
