package desired

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"
	strictjson "sigs.k8s.io/json"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/problem"
)

// ErrPodTemplate is wrapped by errors about a pod template of the user's.
var ErrPodTemplate = errors.New("cannot be used")

// Platform is what the operator's flags say of all pods.
type Platform struct {
	// Image of dispatchers and migrations. Required.
	Image string
	// ImagePullSecrets are names of Secrets in each pod's own namespace. Defaults to none.
	ImagePullSecrets []string
	// InheritedLabels are keys of labels that what is made for an object has from it. Defaults to none.
	InheritedLabels []string
}

// Inherited are the labels that what is made for the object has from it.
func (p Platform) Inherited(o metav1.Object) map[string]string {
	inherited := map[string]string{}
	for _, key := range p.InheritedLabels {
		if value, ok := o.GetLabels()[key]; ok {
			inherited[key] = value
		}
	}
	return inherited
}

// inherit adds the labels that a template has from the object, but for those that it has already. Without such labels the
// template is the same as before.
func (p Platform) inherit(o Owner, template *corev1ac.PodTemplateSpecApplyConfiguration) {
	inherited := p.Inherited(o)
	maps.DeleteFunc(inherited, func(key, _ string) bool { _, ok := template.Labels[key]; return ok })
	template.WithLabels(inherited)
}

// podTemplate is what every pod has: the restricted Pod Security profile, no
// API token, a read-only root, the file of a ConfigMap, and its Secrets as files.
func podTemplate(o Owner, p Platform, component, configMap string, refs []spec.Ref) (*corev1ac.PodTemplateSpecApplyConfiguration, error) {
	secrets, err := secretsVolume(refs)
	if err != nil {
		return nil, err
	}
	container := corev1ac.Container().WithName(Container).
		WithImage(p.Image).
		WithTerminationMessagePolicy(corev1.TerminationMessageFallbackToLogsOnError).
		WithSecurityContext(corev1ac.SecurityContext().
			WithAllowPrivilegeEscalation(false).
			WithReadOnlyRootFilesystem(true).
			WithCapabilities(corev1ac.Capabilities().WithDrop("ALL"))).
		WithResources(corev1ac.ResourceRequirements().WithRequests(corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("50m"),
			corev1.ResourceMemory: resource.MustParse("64Mi"),
		})).
		WithVolumeMounts(mount(volumeConfig, configDir), mount("secrets", secretsDir))
	return corev1ac.PodTemplateSpec().
		WithLabels(Labels(o, component)).
		WithSpec(corev1ac.PodSpec().
			WithServiceAccountName(serviceAccount(o)).
			WithImagePullSecrets(pullSecrets(o, p)...).
			WithAutomountServiceAccountToken(false).
			WithEnableServiceLinks(false).
			WithSecurityContext(corev1ac.PodSecurityContext().
				WithRunAsNonRoot(true).
				WithSeccompProfile(corev1ac.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault))).
			WithContainers(container).
			WithVolumes(corev1ac.Volume().WithName(volumeConfig).WithConfigMap(corev1ac.ConfigMapVolumeSource().WithName(configMap)), secrets)), nil
}

// pullSecrets are the flags' and the spec's, each once.
func pullSecrets(o Owner, p Platform) (refs []*corev1ac.LocalObjectReferenceApplyConfiguration) {
	names := slices.Clone(p.ImagePullSecrets)
	if obd, ok := o.(*v1alpha1.OutboxDispatcher); ok {
		for _, secret := range obd.Spec.Pods.ImagePullSecrets {
			if !slices.Contains(names, secret.Name) {
				names = append(names, secret.Name)
			}
		}
	}
	for _, name := range names {
		refs = append(refs, corev1ac.LocalObjectReference().WithName(name))
	}
	return refs
}

// serviceAccount is whom pods run as: of a dispatcher one of its own, of an Outbox's Job the namespace's
// default one, which gets no token either.
func serviceAccount(o Owner) string {
	if obd, ok := o.(*v1alpha1.OutboxDispatcher); ok {
		return accountName(obd)
	}
	return "default"
}

// configDir is where the objects of a pod are mounted, as configFile.
const (
	configDir    = "/etc/outbox/config"
	configFile   = configDir + "/" + keyConfig
	volumeConfig = "config"
)

// secretsDir is where the keys of the pods' Secrets and ConfigMaps are mounted.
const secretsDir = "/etc/outbox/secrets"

// secretsVolume projects the keys into one folder, each as NAME/KEY. It fails for two keys that would be one file.
func secretsVolume(refs []spec.Ref) (*corev1ac.VolumeApplyConfiguration, error) {
	volume, seen := corev1ac.ProjectedVolumeSource(), map[string]spec.Ref{}
	for _, ref := range refs {
		if other, ok := seen[ref.Path()]; ok {
			if other.Secret != ref.Secret {
				return nil, fmt.Errorf("%s %w: %s names a Secret, and this a ConfigMap, of the same name %q with the same key %q, and pods have one file for both; give one of them another name",
					ref.Field, ErrPodTemplate, other.Field, ref.Secret+ref.ConfigMap, ref.Key)
			}
			continue
		}
		seen[ref.Path()] = ref
		item := corev1ac.KeyToPath().WithKey(ref.Key).WithPath(ref.Path())
		if ref.ConfigMap != "" {
			volume.WithSources(corev1ac.VolumeProjection().WithConfigMap(corev1ac.ConfigMapProjection().WithName(ref.ConfigMap).WithItems(item)))
		} else {
			secret := corev1ac.SecretProjection().WithName(ref.Secret).WithItems(item)
			if ref.Optional {
				secret.WithOptional(true)
			}
			volume.WithSources(corev1ac.VolumeProjection().WithSecret(secret))
		}
	}
	return corev1ac.Volume().WithName("secrets").WithProjected(volume), nil
}

func mount(volume, dir string) *corev1ac.VolumeMountApplyConfiguration {
	return corev1ac.VolumeMount().WithName(volume).WithMountPath(dir).WithReadOnly(true)
}

// ConfigNames are the names of the ConfigMaps with files of the operator's that a pod of the template reads.
func ConfigNames(spec *corev1.PodSpec) (names []string) {
	for _, volume := range spec.Volumes {
		if volume.ConfigMap != nil && volume.Name == volumeConfig {
			names = append(names, volume.ConfigMap.Name)
		}
	}
	return names
}

// Image returns the image of the dispatcher's container, empty when there is none.
func Image(spec *corev1.PodSpec) string {
	for _, c := range spec.Containers {
		if c.Name == Container {
			return c.Image
		}
	}
	return ""
}

// DigestOf is what is compared of a pod's spec: its [ConfigNames] and its [Image].
func DigestOf(spec *corev1.PodSpec) (kept corev1.PodSpec) {
	for _, v := range spec.Volumes {
		if v.ConfigMap != nil && v.Name == volumeConfig {
			source := corev1.ConfigMapVolumeSource{LocalObjectReference: v.ConfigMap.LocalObjectReference}
			kept.Volumes = append(kept.Volumes, corev1.Volume{Name: v.Name, VolumeSource: corev1.VolumeSource{ConfigMap: &source}})
		}
	}
	if image := Image(spec); image != "" {
		kept.Containers = []corev1.Container{{Name: Container, Image: problem.Clip(image, maxImage)}}
	}
	return kept
}

// maxImage is how much of the name of an image is compared.
const maxImage = 512

// Digest reduces a template to what is compared of it: [DigestOf], and a hash of the rest.
func Digest(t *corev1.PodTemplateSpec) {
	kept := corev1.PodTemplateSpec{Spec: DigestOf(&t.Spec)}
	StripConfig(&t.Spec)
	kept.Annotations = map[string]string{AnnotationTemplate: Hash(t)}
	*t = kept
}

// StripConfig takes the names of [ConfigNames] and the [Image] out, so that what is left is the rest.
func StripConfig(spec *corev1.PodSpec) {
	for i := range spec.Volumes {
		if v := &spec.Volumes[i]; v.ConfigMap != nil && v.Name == volumeConfig {
			v.ConfigMap.Name = ""
		}
	}
	for i := range spec.Containers {
		if c := &spec.Containers[i]; c.Name == Container {
			c.Image = ""
		}
	}
}

// merge lays the user's template, which the field holds, over the base. Errors name the field and wrap
// [ErrPodTemplate].
func merge(base *corev1ac.PodTemplateSpecApplyConfiguration, field string, users json.RawMessage) (*corev1ac.PodTemplateSpecApplyConfiguration, error) {
	if len(users) == 0 {
		return base, nil
	}
	var template *corev1ac.PodTemplateSpecApplyConfiguration
	err := withinBounds(users)
	if err == nil {
		template, err = layOver(base, users)
	}
	if err == nil {
		err = keepsOurs(base, template, field)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %w: %w", field, ErrPodTemplate, err)
	}
	return template, nil
}

// Bounds of a pod template of the user's. Merging two lists takes as long as the product of their lengths.
const (
	maxTemplate = 64 << 10
	maxList     = 256
)

// withinBounds checks the size of a user's template, and the lengths of its lists.
func withinBounds(raw []byte) error {
	if len(raw) > maxTemplate {
		return fmt.Errorf("it has %d bytes of JSON, and %d are the most; put what is large into a ConfigMap, and mount that", len(raw), maxTemplate)
	}
	var template any
	if err := json.Unmarshal(raw, &template); err != nil {
		return err
	}
	return shortLists("", template)
}

func shortLists(field string, v any) error {
	switch v := v.(type) {
	case []any:
		if len(v) > maxList {
			return fmt.Errorf("%s has %d entries, and %d are the most; remove some", strings.TrimPrefix(field, "."), len(v), maxList)
		}
		for i := range v {
			if err := shortLists(fmt.Sprintf("%s[%d]", field, i), v[i]); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if err := shortLists(field+"."+name, v[name]); err != nil {
				return err
			}
		}
	}
	return nil
}

// layOver checks the result strictly, so that a misspelled field is an error instead of being dropped.
func layOver(base *corev1ac.PodTemplateSpecApplyConfiguration, users []byte) (*corev1ac.PodTemplateSpecApplyConfiguration, error) {
	const see = "see `kubectl explain deployment.spec.template` for what it can have"
	original, err := json.Marshal(base)
	if err != nil {
		return nil, err
	}
	merged, err := strategicpatch.StrategicMergePatch(original, users, corev1.PodTemplateSpec{})
	if err != nil {
		return nil, fmt.Errorf("%w; %s", err, see)
	}
	strict, err := strictjson.UnmarshalStrict(merged, &corev1.PodTemplateSpec{})
	if err = errors.Join(append(strict, err)...); err != nil {
		return nil, fmt.Errorf("%w; %s", err, see)
	}
	template := corev1ac.PodTemplateSpec()
	return template, json.Unmarshal(merged, template)
}

// keepsOurs checks that the merged template has what the operator finds its pods by, and what it mounts for them.
func keepsOurs(base, merged *corev1ac.PodTemplateSpecApplyConfiguration, field string) error {
	var changed []string
	for key, value := range base.Labels {
		ours := strings.HasPrefix(key, Prefix)
		if ours && (merged.ObjectMetaApplyConfiguration == nil || merged.Labels[key] != value) {
			changed = append(changed, key)
		}
	}
	if len(changed) > 0 {
		slices.Sort(changed)
		return fmt.Errorf("it changes labels by which the operator finds its pods (%s); leave them out of it", strings.Join(changed, ", "))
	}
	if merged.Spec == nil || container(merged) == nil {
		return fmt.Errorf("it removes the container %q; keep it", Container)
	}
	if is := merged.Spec.ServiceAccountName; field == "spec.pods.template" && (is == nil || *is != *base.Spec.ServiceAccountName) {
		return errors.New("it sets serviceAccountName; leave that out, and name the account in spec.pods.serviceAccount")
	}
	for _, v := range base.Spec.Volumes {
		if !slices.ContainsFunc(merged.Spec.Volumes, func(is corev1ac.VolumeApplyConfiguration) bool { return equality.Semantic.DeepEqual(is, v) }) {
			return fmt.Errorf("it changes or removes the volume %q, which is the operator's; give yours another name", *v.Name)
		}
	}
	mounted, ours := container(merged).VolumeMounts, container(base).VolumeMounts
	for _, m := range ours {
		if !slices.ContainsFunc(mounted, func(is corev1ac.VolumeMountApplyConfiguration) bool { return equality.Semantic.DeepEqual(is, m) }) {
			return fmt.Errorf("it changes or removes what is mounted at %s, which is the operator's; mount yours elsewhere", *m.MountPath)
		}
	}
	for _, m := range mounted {
		if at := path.Clean("/" + ptr.Deref(m.MountPath, "")); len(mounted) > len(ours) && covers(at) && !slices.ContainsFunc(ours, func(o corev1ac.VolumeMountApplyConfiguration) bool { return *o.MountPath == at }) {
			return fmt.Errorf("it mounts a volume at %s; mount it elsewhere, because the operator's files are below %s", at, filesDir)
		}
	}
	return nil
}

// filesDir is above the directories of all that the operator mounts.
const filesDir = "/etc/outbox"

// covers reports whether what is mounted there hides files of the operator's, or lies among them.
func covers(at string) bool {
	return at == "/" || strings.HasPrefix(filesDir+"/", at+"/") || strings.HasPrefix(at, filesDir+"/")
}

// container is the dispatcher's, nil when there is none.
func container(t *corev1ac.PodTemplateSpecApplyConfiguration) *corev1ac.ContainerApplyConfiguration {
	i := slices.IndexFunc(t.Spec.Containers, func(c corev1ac.ContainerApplyConfiguration) bool {
		return c.Name != nil && *c.Name == Container
	})
	if i < 0 {
		return nil
	}
	return &t.Spec.Containers[i]
}
