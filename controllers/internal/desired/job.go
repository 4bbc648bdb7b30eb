package desired

import (
	"cmp"
	"encoding/json"
	"strconv"
	"time"

	batchv1ac "k8s.io/client-go/applyconfigurations/batch/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// migrationDeadline ends a Job that cannot start, or that hangs; then it is tried again. An index of a large table
// takes longer, and begins again with each try.
const (
	migrationDeadline = 30 * time.Minute
	indexDeadline     = 24 * time.Hour
)

// Migration is what a migration of the schema depends on. A change of any of it runs it again, which does nothing to what
// is as it should be.
type Migration struct {
	// Hash identifies the migration: the pod that runs it, with its image and the names of its files.
	Hash string

	owner    Owner
	template *corev1ac.PodTemplateSpecApplyConfiguration
	deadline time.Duration // 0 for migrationDeadline
}

// NewMigration is the migration of the OutboxDispatcher's own database, or nil when the operator does not
// migrate that. Errors wrap [ErrPodTemplate].
func NewMigration(obd *v1alpha1.OutboxDispatcher, p Platform) (*Migration, error) {
	if obd.Spec.OutboxRef != nil {
		return nil, nil // the Outbox has it
	}
	return newMigration(obd, obd.Spec.Database.Outbox().Migration, MigrationRefs(obd), "spec.pods.template", obd.Spec.Pods.Template, p)
}

// NewOutboxMigration is the migration that the Outbox needs, or nil when the operator does not migrate.
// Errors wrap [ErrPodTemplate].
func NewOutboxMigration(o *v1alpha1.Outbox, p Platform) (*Migration, error) {
	return newMigration(o, o.Spec.Migration, OutboxRefs(o), "", nil, p)
}

// newMigration makes a pod that takes over the migration's pod template, else the one that is given (users,
// of the field): see jobTemplate.
func newMigration(o Owner, by *spec.Migration, named []spec.Ref, field string, users json.RawMessage, p Platform) (*Migration, error) {
	if !migrates(by) {
		return nil, nil
	}
	command := []string{"/dispatcher", "migrate", "up", "-f", configFile, "--secrets", secretsDir, "--grant-to-login-of", configFile}
	if by.PodTemplate != nil {
		field, users = "spec.migration.podTemplate", by.PodTemplate
	}
	base, err := podTemplate(o, p, ComponentMigration, *migrationConfigMap(o).Name, named)
	if err != nil {
		return nil, err
	}
	template, err := jobTemplate(base, field, users, command...)
	if err != nil {
		return nil, err
	}
	m := &Migration{Hash: Hash(template), owner: o, template: template}
	p.inherit(o, template) // after the hash: another label does not migrate again
	if by.Tenants != "" {
		m.deadline = indexDeadline
	}
	return m, nil
}

// Job is the attempt's Job. It tries once; the controller makes the next attempt.
func (m *Migration) Job(attempt int) *batchv1ac.JobApplyConfiguration {
	name := m.owner.GetName() + "-migrate-" + Hash(m.Hash, attempt)[:6]
	return batchv1ac.Job(name, m.owner.GetNamespace()).
		WithLabels(Labels(m.owner, ComponentMigration)).
		WithLabels(map[string]string{LabelMigration: m.Hash}).
		WithAnnotations(map[string]string{AnnotationAttempt: strconv.Itoa(attempt)}).
		WithOwnerReferences(owner(m.owner)).
		WithSpec(batchv1ac.JobSpec().
			WithBackoffLimit(0).
			WithActiveDeadlineSeconds(int64(cmp.Or(m.deadline, migrationDeadline) / time.Second)).
			WithTemplate(m.template))
}
