package desired

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	batchv1ac "k8s.io/client-go/applyconfigurations/batch/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

const (
	migrateDir  = "/etc/outbox/migrate"
	migrateFile = migrateDir + "/config.yaml"
)

// Migration is what a migration of the schema depends on. A change of any of it migrates again,
// which does nothing to a schema that is up to date.
type Migration struct {
	// Hash identifies the migration: image, schema, logins, and the pod that runs it.
	Hash string

	obd      *v1alpha1.OutboxDispatcher
	template *corev1ac.PodTemplateSpecApplyConfiguration
}

// NewMigration is the migration that the OutboxDispatcher needs, or nil when the operator does not
// migrate. Its pod takes over the user's pod template, without sidecars, which would keep the Job
// from ending (a sidecar among the initContainers stays). Errors wrap [ErrPodTemplate].
func NewMigration(obd *v1alpha1.OutboxDispatcher, image, secrets string) (*Migration, error) {
	if !Migrates(obd) {
		return nil, nil
	}
	command := []string{"/dispatcher", "migrate", "up", "-f", migrateFile}
	if obd.Spec.Database.Migration.Secret != nil { // else the dispatchers' login owns the schema
		command = append(command, "--grant-to-login-of", configFile)
	}
	base := podTemplate(obd, NameMigration, corev1ac.Container().WithImage(image), MigrationRefs(obd))
	base.Spec.WithVolumes(configVolume(obd, "migrate", keyMigrate))
	container(base).WithVolumeMounts(corev1ac.VolumeMount().WithName("migrate").WithMountPath(migrateDir).WithReadOnly(true))
	template, err := merge(base, obd)
	if err != nil {
		return nil, err
	}
	only := *container(template)
	only.Command, only.Args = command, nil
	only.LivenessProbe, only.ReadinessProbe, only.StartupProbe, only.Lifecycle = nil, nil, nil, nil
	template.Spec.Containers = []corev1ac.ContainerApplyConfiguration{only}
	template.Spec.WithRestartPolicy(corev1.RestartPolicyNever)
	return &Migration{
		Hash:     Hash(template, MigrationConfig(obd).Database, Config(obd).Database, secrets),
		obd:      obd,
		template: template,
	}, nil
}

// Job is the attempt's Job. It tries once; the controller makes the next attempt.
func (m *Migration) Job(attempt int) *batchv1ac.JobApplyConfiguration {
	name := m.obd.Name + "-migrate-" + Hash(m.Hash, attempt)[:6]
	return batchv1ac.Job(name, m.obd.Namespace).
		WithLabels(Labels(m.obd, NameMigration)).
		WithLabels(map[string]string{LabelMigration: m.Hash}).
		WithAnnotations(map[string]string{AnnotationAttempt: strconv.Itoa(attempt)}).
		WithOwnerReferences(owner(m.obd)).
		WithSpec(batchv1ac.JobSpec().
			WithBackoffLimit(0).
			WithTemplate(m.template))
}
