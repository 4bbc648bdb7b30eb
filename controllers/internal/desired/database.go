package desired

import (
	"strings"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// outboxOf is where the dispatcher's events are, and the field of a spec that says it: in the Outbox that it refers to,
// else in one like its own database. It is nil when the Outbox that it refers to is not there.
func outboxOf(obd *v1alpha1.OutboxDispatcher, outbox *v1alpha1.Outbox) (field string, spec *v1alpha1.OutboxSpec) {
	switch {
	case obd.Spec.OutboxRef == nil:
		return ownDatabase, own(obd.Spec.Database)
	case outbox != nil:
		return "Outbox " + outbox.Name + ": spec", &outbox.Spec
	}
	return "", nil
}

// ownDatabase is the field of a dispatcher's own database.
const ownDatabase = "spec.database"

// own is the spec of an Outbox that says the same.
func own(d *v1alpha1.DispatcherDatabase) *v1alpha1.OutboxSpec {
	spec := &v1alpha1.OutboxSpec{SecretRef: d.SecretRef, Schema: d.Schema}
	if d.CASecretRef != nil {
		spec.TLS = &v1alpha1.DatabaseTLS{CASecretRef: d.CASecretRef}
	}
	if d.MigrationSecretRef != nil {
		spec.Migration = &v1alpha1.Migration{SecretRef: d.MigrationSecretRef}
	}
	return spec
}

// ownNames are the names that fields of [own] have in the dispatcher's database.
var ownNames = strings.NewReplacer(ownDatabase+".tls.", ownDatabase+".", ownDatabase+".migration.secretRef", ownDatabase+".migrationSecretRef")

// login is a user, or the Secret with the login.
type login struct {
	secret *v1alpha1.SecretRef
	keys   *v1alpha1.ConnectionKeys
	user   string
}

// database is how the dispatchers reach the outbox. field is the field of the spec that says it.
func (m *mounts) database(field string, d *v1alpha1.OutboxSpec) spec.Database {
	c := spec.Database{Schema: d.Schema}
	c.DSNFile, c.Connection = m.connection(field, d, login{secret: &d.SecretRef, keys: d.SecretKeys, user: d.User})
	m.secure(field, d, &c)
	return c
}

// migration is how the migration Job reaches the outbox: as the dispatchers do, but for its own login.
func (m *mounts) migration(field string, d *v1alpha1.OutboxSpec) spec.Database {
	c := m.database(field, d)
	own := d.Migration
	if own == nil {
		return c
	}
	at := &mounts{dir: "migration"}
	if hasOwnLogin(own) {
		c.DSNFile, c.Connection = at.connection(field+".migration", d, login{secret: own.SecretRef, keys: own.SecretKeys, user: own.User})
	}
	if own.ClientCertSecretRef != nil {
		tls := at.tls(field+".migration", v1alpha1.TLS{ClientCertSecretRef: own.ClientCertSecretRef, ClientKeySecretRef: own.ClientKeySecretRef})
		c.ClientCertFile, c.ClientKeyFile = tls.ClientCertFile, tls.ClientKeyFile
	}
	m.refs = append(m.refs, at.refs...)
	c.M10, c.Overview = converted[*spec.M10](own.M10), converted[*spec.Overview](own.Overview)
	c.Tenants = spec.Tenants(own.Tenants)
	return c
}

// replayDatabase is how the Job of a replay reaches the outbox: as the dispatchers do, but with a login of its own and
// with nothing of theirs.
func (m *mounts) replayDatabase(field string, d *v1alpha1.OutboxSpec) spec.Database {
	own, c := d.ReplayLogin, spec.Database{Schema: d.Schema}
	c.DSNFile, c.Connection = m.connection(field+".replayLogin", d, login{secret: own.SecretRef, keys: own.SecretKeys, user: own.User})
	if own.ClientCertSecretRef == nil {
		m.secure(field, d, &c)
		return c
	}
	bare := d.DeepCopy()
	if bare.TLS != nil {
		bare.TLS.ClientCertSecretRef = nil
	}
	m.secure(field, bare, &c)
	tls := m.tls(field+".replayLogin", v1alpha1.TLS{ClientCertSecretRef: own.ClientCertSecretRef, ClientKeySecretRef: own.ClientKeySecretRef})
	c.ClientCertFile, c.ClientKeyFile = tls.ClientCertFile, tls.ClientKeyFile
	return c
}

// hasOwnLogin reports whether the migration has a login of its own.
func hasOwnLogin(m *v1alpha1.Migration) bool { return m.SecretRef != nil || m.User != "" }

// connection is a connection string's file, or the parts of a connection: of the spec, or in the Secret.
func (m *mounts) connection(field string, d *v1alpha1.OutboxSpec, l login) (dsnFile string, c *spec.Connection) {
	secret, keys := v1alpha1.SecretRef{}, v1alpha1.ConnectionKeys{}
	if l.secret != nil {
		secret = *l.secret
	}
	if secret.Key != "" || d.Server == nil && l.keys == nil && l.user == "" {
		return m.secret(field+".secretRef", secret, "dsn"), nil
	}
	if l.keys != nil {
		keys = *l.keys
	}
	part := func(key, byDefault string) string {
		return m.secret(field+".secretRef", v1alpha1.SecretRef{Name: secret.Name, Key: key}, byDefault)
	}
	c = &spec.Connection{User: l.user}
	if s := d.Server; s != nil {
		c.Host, c.Port, c.Database = s.Host, int(s.Port), s.Database
	} else {
		c.HostFile, c.PortFile, c.DatabaseFile = part(keys.Host, "host"), part(keys.Port, "port"), part(keys.Database, "dbname")
	}
	if l.user == "" {
		c.UserFile = part(keys.User, "username")
	}
	if d.IAM == nil && secret.Name != "" {
		c.PasswordFile = part(keys.Password, "password")
	}
	return "", c
}

// secure is what the database's tls and iam say.
func (m *mounts) secure(field string, d *v1alpha1.OutboxSpec, c *spec.Database) {
	if t := d.TLS; t != nil {
		tls := m.tls(field+".tls", v1alpha1.TLS{
			CASecretRef: t.CASecretRef, CAConfigMapRef: t.CAConfigMapRef, ClientCertSecretRef: t.ClientCertSecretRef, ClientKeySecretRef: t.ClientKeySecretRef,
		})
		c.SSLMode, c.CAFile, c.ClientCertFile, c.ClientKeyFile = t.Mode, tls.CAFile, tls.ClientCertFile, tls.ClientKeyFile
	}
	c.IAM = converted[*spec.IAM](d.IAM)
}
