package desired

import (
	"path"

	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// Ref is one key of a Secret or ConfigMap that the spec names, and the file that pods read it from.
type Ref struct {
	// Secret or ConfigMap is the name of the one that has the key; the other is empty.
	Secret, ConfigMap string
	Key               string
	// Path is relative to the directory that secrets are mounted at.
	Path string
	// Field is the field of the OutboxDispatcher that names it.
	Field string
}

func refOf(r spec.Ref) Ref {
	return Ref{Secret: r.Secret, ConfigMap: r.ConfigMap, Key: r.Key, Path: path.Join(r.Dir, r.File), Field: r.Field}
}

// File is where pods read the key.
func (r Ref) File() string { return path.Join(secretsDir, r.Path) }

// secretsDir is where the pods' Secrets are mounted, and the ConfigMaps with certificates of authorities.
const secretsDir = "/etc/outbox/secrets"

// DispatcherRefs are what the dispatchers read. A running pod reads what changed again (CONTRACT C-102).
// outbox is the one that it refers to, nil for none.
func DispatcherRefs(obd *v1alpha1.OutboxDispatcher, outbox *v1alpha1.Outbox) []Ref {
	_, refs := withRefs(obd, outbox)
	return refs
}

// migrationRefs are what a migration Job reads: its own login, and the dispatchers', whose rights it
// grants. None when the operator does not migrate.
func migrationRefs(o Owner, db *v1alpha1.Migration) []Ref {
	if !migrates(db) {
		return nil
	}
	_, refs := settings(databaseOf(o, "spec"), spec.MigrationLogin)
	return refs
}

// MigrationRefs are what the migration Job of the dispatcher's own database reads.
func MigrationRefs(obd *v1alpha1.OutboxDispatcher) []Ref {
	if obd.Spec.OutboxRef != nil {
		return nil
	}
	return migrationRefs(obd, ownMigration(obd))
}

// OutboxRefs are what an Outbox's migration Job reads.
func OutboxRefs(o *v1alpha1.Outbox) []Ref { return migrationRefs(o, o.Spec.Migration) }

// Migrates reports whether the operator migrates the schema.
func Migrates(db *v1alpha1.OutboxSpec) bool { return migrates(db.Migration) }

func migrates(m *v1alpha1.Migration) bool { return m != nil && m.Policy != v1alpha1.MigrationNone }

// secretsVolume projects the refs' keys into one directory, each at its path.
func secretsVolume(refs []Ref) *corev1ac.VolumeApplyConfiguration {
	volume := corev1ac.ProjectedVolumeSource()
	for _, ref := range refs {
		item := corev1ac.KeyToPath().WithKey(ref.Key).WithPath(ref.Path)
		if ref.ConfigMap != "" {
			volume.WithSources(corev1ac.VolumeProjection().WithConfigMap(
				corev1ac.ConfigMapProjection().WithName(ref.ConfigMap).WithItems(item)))
			continue
		}
		volume.WithSources(corev1ac.VolumeProjection().WithSecret(
			corev1ac.SecretProjection().WithName(ref.Secret).WithItems(item)))
	}
	return corev1ac.Volume().WithName("secrets").WithProjected(volume)
}
