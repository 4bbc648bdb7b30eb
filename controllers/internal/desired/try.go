package desired

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	batchv1ac "k8s.io/client-go/applyconfigurations/batch/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

const (
	// ComponentTry are the Job that tries a spec on past events, and its files.
	ComponentTry = "try"
	// TryManager is the managed-by label of these. It is not [Manager], so the operator sees none of them.
	TryManager = "kubectl-outbox"

	keyRunning    = "running.yaml"
	runningDir    = "/etc/outbox/running"
	volumeRunning = "running"

	// trySlack is how long the Job lives beyond the time that its command has, unless it is deleted.
	trySlack = 30 * time.Second
	// tryKept is how long the Job stays when it has ended, unless it is deleted.
	tryKept = 5 * time.Minute
)

// Try puts past events through a spec, in a Job, and compares with what runs. Nothing of it is sent.
type Try struct {
	// OutboxDispatcher is the one to try, with its defaults.
	*v1alpha1.OutboxDispatcher
	// Outbox is the one that it refers to, nil for none.
	Outbox *v1alpha1.Outbox
	// Name is that of the Job and of its ConfigMap.
	Name string
	// Running is the Deployment whose pods run, nil for none. RunningConfig is the ConfigMap that they load, to
	// compare with; nil compares with the rows' status.
	Running       *appsv1.Deployment
	RunningConfig *corev1.ConfigMap
	// Schemas are ConfigMaps with schemas that the spec names and that are not in the cluster yet, by name.
	Schemas map[string]*corev1.ConfigMap
	// Args are further arguments of `dispatcher try`.
	Args []string
	// Deadline is how long it may take. The Job ends a little later by itself.
	Deadline time.Duration
}

// source is a key of a Secret or ConfigMap, which a file is made of.
type source struct{ secret, configMap, key string }

// Job runs `dispatcher try`, once. Its pod is as the spec says, under the ServiceAccount of the pods that run.
// Errors wrap [ErrPodTemplate].
func (t Try) Job(p Platform) (*batchv1ac.JobApplyConfiguration, error) {
	obd := t.OutboxDispatcher
	base := podTemplate(obd, p, ComponentTry, t.Name, DispatcherRefs(obd, t.Outbox))
	base.Labels[LabelManagedBy] = TryManager
	if refs := t.schemaRefs(); len(refs) > 0 {
		base.Spec.WithVolumes(schemasVolume(refs))
		container(base).WithVolumeMounts(mount("schemas", schemasDir))
	}
	command := []string{"/dispatcher", "try", "-f", configFile}
	if t.RunningConfig != nil {
		command = append(command, "--against", keyRunning) // in the working directory, for a short name in the report
		base.Spec.WithVolumes(t.runningVolume())
		container(base).WithVolumeMounts(mount(volumeRunning, runningDir))
	}
	if t.Running != nil {
		base.Spec.WithServiceAccountName(t.Running.Spec.Template.Spec.ServiceAccountName)
	} else if obd.Spec.Pods.ServiceAccount == nil || obd.Spec.Pods.ServiceAccount.Name == "" {
		base.Spec.WithServiceAccountName("default") // its own is made when it runs
	}
	template, err := jobTemplate(base, "spec.pods.template", obd.Spec.Pods.Template, append(command, t.Args...)...)
	if err != nil {
		return nil, err
	}
	if t.RunningConfig != nil {
		container(template).WithWorkingDir(runningDir)
	}
	return batchv1ac.Job(t.Name, t.Namespace).
		WithLabels(base.Labels).
		WithSpec(batchv1ac.JobSpec().
			WithBackoffLimit(0).
			WithActiveDeadlineSeconds(int64((t.Deadline + trySlack) / time.Second)).
			WithTTLSecondsAfterFinished(int32(tryKept / time.Second)).
			WithTemplate(template)), nil
}

// ConfigMap holds the files that the Job loads. It is deleted with the Job. ConfigMap returns an error for a key that a
// ConfigMap of the file lacks.
func (t Try) ConfigMap(job *batchv1.Job) (*corev1ac.ConfigMapApplyConfiguration, error) {
	data := map[string]string{keyConfig: render(Config(t.OutboxDispatcher, t.Outbox))}
	if t.RunningConfig != nil {
		text, err := t.runningFile()
		if err != nil {
			return nil, err
		}
		data[keyRunning] = text
	}
	for _, ref := range SchemaRefs(t.OutboxDispatcher) {
		made, ok := t.Schemas[ref.ConfigMap]
		if !ok {
			continue
		}
		text, ok := made.Data[ref.Key]
		if !ok {
			return nil, fmt.Errorf("%s names the key %q, and the ConfigMap %s of the file has none; correct one of them", ref.Field(), ref.Key, ref.ConfigMap)
		}
		data[schemaKey(ref)] = text
	}
	return corev1ac.ConfigMap(t.Name, t.Namespace).
		WithLabels(job.Labels).
		WithOwnerReferences(metav1ac.OwnerReference().WithAPIVersion("batch/v1").WithKind("Job").WithName(job.Name).WithUID(job.UID)).
		WithImmutable(true).
		WithData(data), nil
}

// schemaRefs are the schemas of the spec; those that came with it are in the Job's own ConfigMap.
func (t Try) schemaRefs() []SchemaRef {
	refs := SchemaRefs(t.OutboxDispatcher)
	for i, ref := range refs {
		if _, ok := t.Schemas[ref.ConfigMap]; ok {
			refs[i].ConfigMap, refs[i].Key = t.Name, schemaKey(ref)
		}
	}
	return refs
}

func schemaKey(ref SchemaRef) string { return "schema-" + ref.path() }

// runningFile is the configuration that runs. Its files have other paths where the spec to try has another file of
// that path.
func (t Try) runningFile() (string, error) {
	text, ok := t.RunningConfig.Data[keyConfig]
	if !ok {
		return "", fmt.Errorf("the ConfigMap %s has no %s", t.RunningConfig.Name, keyConfig)
	}
	var file any
	if err := yaml.Unmarshal([]byte(text), &file); err != nil {
		return "", fmt.Errorf("read %s of the ConfigMap %s: %w", keyConfig, t.RunningConfig.Name, err)
	}
	moved := map[string]string{}
	for file := range t.differing() {
		moved[file] = movedFile(file)
	}
	out, err := yaml.Marshal(replaced(file, moved))
	return string(out), err
}

// movedFile is where the running configuration finds its file.
func movedFile(file string) string { return path.Join(runningDir, file) }

// replaced puts other words in the place of some, wherever they are in a value of JSON.
func replaced(v any, words map[string]string) any {
	switch v := v.(type) {
	case string:
		if other, ok := words[v]; ok {
			return other
		}
	case []any:
		for i := range v {
			v[i] = replaced(v[i], words)
		}
	case map[string]any:
		for k := range v {
			v[k] = replaced(v[k], words)
		}
	}
	return v
}

// runningVolume holds the running configuration, and its files that differ.
func (t Try) runningVolume() *corev1ac.VolumeApplyConfiguration {
	volume := corev1ac.ProjectedVolumeSource().WithSources(corev1ac.VolumeProjection().WithConfigMap(
		corev1ac.ConfigMapProjection().WithName(t.Name).WithItems(corev1ac.KeyToPath().WithKey(keyRunning).WithPath(keyRunning))))
	differing := t.differing()
	for _, file := range slices.Sorted(maps.Keys(differing)) {
		from := differing[file]
		item := corev1ac.KeyToPath().WithKey(from.key).WithPath(file[1:])
		if from.secret != "" {
			volume.WithSources(corev1ac.VolumeProjection().WithSecret(corev1ac.SecretProjection().WithName(from.secret).WithItems(item)))
			continue
		}
		volume.WithSources(corev1ac.VolumeProjection().WithConfigMap(corev1ac.ConfigMapProjection().WithName(from.configMap).WithItems(item)))
	}
	return corev1ac.Volume().WithName(volumeRunning).WithProjected(volume)
}

// differing are the files of the pods that run which are not the same in the spec to try. Those of the database are
// left out: rows come from that of the spec.
func (t Try) differing() map[string]source {
	ours := map[string]source{}
	for _, ref := range DispatcherRefs(t.OutboxDispatcher, t.Outbox) {
		ours[ref.File()] = source{ref.Secret, ref.ConfigMap, ref.Key}
	}
	for _, ref := range t.schemaRefs() {
		ours[ref.File()] = source{configMap: ref.ConfigMap, key: ref.Key}
	}
	theirs := mountedFiles(&t.Running.Spec.Template.Spec)
	maps.DeleteFunc(theirs, func(file string, from source) bool {
		return path.Dir(file) == path.Join(secretsDir, "database") || ours[file] == from
	})
	return theirs
}

// mountedFiles are the files of a dispatcher's pod that come from what its spec names.
func mountedFiles(spec *corev1.PodSpec) map[string]source {
	files := map[string]source{}
	for _, volume := range spec.Volumes {
		dir, ok := map[string]string{"secrets": secretsDir, "schemas": schemasDir}[volume.Name]
		if !ok || volume.Projected == nil {
			continue
		}
		for _, from := range volume.Projected.Sources {
			switch {
			case from.Secret != nil:
				for _, item := range from.Secret.Items {
					files[path.Join(dir, item.Path)] = source{secret: from.Secret.Name, key: item.Key}
				}
			case from.ConfigMap != nil:
				for _, item := range from.ConfigMap.Items {
					files[path.Join(dir, item.Path)] = source{configMap: from.ConfigMap.Name, key: item.Key}
				}
			}
		}
	}
	return files
}
