package desired

import (
	"path"
	"slices"

	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// Ref is one key of a Secret that the spec names, and the file that pods read it from.
type Ref struct {
	Secret, Key string
	// Path is relative to the directory that secrets are mounted at.
	Path string
	// Field is the field of the OutboxDispatcher that names the Secret.
	Field string
}

// File is where pods read the key.
func (r Ref) File() string { return path.Join(secretsDir, r.Path) }

// secretsDir is where the pods' Secrets are mounted.
const secretsDir = "/etc/outbox/secrets"

// Paths of the single keys; logins are below database and migration.
const (
	pathDatabaseCA = "database-ca/ca.crt"
	pathBearer     = "sink/bearer-token"
	pathToken      = "sink/token"
	pathUsername   = "sink/username"
	pathPassword   = "sink/password"
	pathSinkCA     = "sink/ca.crt"
	pathClientCert = "sink/tls.crt"
	pathClientKey  = "sink/tls.key"
)

// DispatcherRefs are what the dispatchers read. Pods roll when one of them changes (CONTRACT C-102).
func DispatcherRefs(obd *v1alpha1.OutboxDispatcher) []Ref {
	return slices.Concat(
		loginRefs("database", "spec.database.secret", obd.Spec.Database.Secret),
		databaseCARefs(obd),
		sinkRefs(obd.Spec.Sink),
		registryRefs(obd.Spec.SchemaRegistry),
	)
}

// MigrationRefs are what the migration Job reads: its own login, and the dispatchers', whose rights
// it grants. None when the operator does not migrate.
func MigrationRefs(obd *v1alpha1.OutboxDispatcher) []Ref {
	if !Migrates(obd) {
		return nil
	}
	refs := slices.Concat(
		loginRefs("database", "spec.database.secret", obd.Spec.Database.Secret),
		databaseCARefs(obd),
	)
	if own := obd.Spec.Database.Migration.Secret; own != nil {
		refs = append(refs, loginRefs("migration", "spec.database.migration.secret", *own)...)
	}
	return refs
}

// Migrates reports whether the operator migrates the schema.
func Migrates(obd *v1alpha1.OutboxDispatcher) bool {
	m := obd.Spec.Database.Migration
	return m != nil && m.Policy != v1alpha1.MigrationNone
}

// SecretNames are the names of all Secrets that the spec names, each once.
func SecretNames(obd *v1alpha1.OutboxDispatcher) []string {
	var names []string
	for _, ref := range slices.Concat(DispatcherRefs(obd), MigrationRefs(obd)) {
		names = append(names, ref.Secret)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func loginRefs(dir, field string, s v1alpha1.DatabaseSecret) []Ref {
	ref := func(key, file string) Ref { return Ref{s.Name, key, path.Join(dir, file), field} }
	if s.Keys == nil {
		key := s.DSNKey
		if key == "" {
			key = "dsn"
		}
		return []Ref{ref(key, "dsn")}
	}
	return []Ref{
		ref(s.Keys.Host, "host"),
		ref(s.Keys.Port, "port"),
		ref(s.Keys.Database, "dbname"),
		ref(s.Keys.User, "username"),
		ref(s.Keys.Password, "password"),
	}
}

func databaseCARefs(obd *v1alpha1.OutboxDispatcher) []Ref {
	tls := obd.Spec.Database.TLS
	if tls == nil || tls.CA == nil {
		return nil
	}
	return []Ref{{tls.CA.Name, tls.CA.Key, pathDatabaseCA, "spec.database.tls.ca"}}
}

// secretsVolume projects the refs' keys into one directory, each at its path.
func secretsVolume(refs []Ref) *corev1ac.VolumeApplyConfiguration {
	volume := corev1ac.ProjectedVolumeSource()
	for _, ref := range refs {
		volume.WithSources(corev1ac.VolumeProjection().WithSecret(
			corev1ac.SecretProjection().WithName(ref.Secret).
				WithItems(corev1ac.KeyToPath().WithKey(ref.Key).WithPath(ref.Path))))
	}
	return corev1ac.Volume().WithName("secrets").WithProjected(volume)
}
