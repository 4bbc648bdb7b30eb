package desired

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	strictjson "sigs.k8s.io/json"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// ErrPodTemplate is wrapped by errors about spec.podTemplate.
var ErrPodTemplate = errors.New("spec.podTemplate cannot be used")

// podTemplate is what every pod of an OutboxDispatcher has: the restricted Pod Security profile, no
// API token, a read-only root, and its Secrets as files.
func podTemplate(obd *v1alpha1.OutboxDispatcher, name string, container *corev1ac.ContainerApplyConfiguration, refs []Ref) *corev1ac.PodTemplateSpecApplyConfiguration {
	container.WithName(Container).
		WithTerminationMessagePolicy(corev1.TerminationMessageFallbackToLogsOnError).
		WithSecurityContext(corev1ac.SecurityContext().
			WithAllowPrivilegeEscalation(false).
			WithReadOnlyRootFilesystem(true).
			WithCapabilities(corev1ac.Capabilities().WithDrop("ALL"))).
		WithResources(corev1ac.ResourceRequirements().WithRequests(corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("50m"),
			corev1.ResourceMemory: resource.MustParse("64Mi"),
		})).
		WithVolumeMounts(
			corev1ac.VolumeMount().WithName("config").WithMountPath(configDir).WithReadOnly(true),
			corev1ac.VolumeMount().WithName("secrets").WithMountPath(secretsDir).WithReadOnly(true))
	return corev1ac.PodTemplateSpec().
		WithLabels(Labels(obd, name)).
		WithSpec(corev1ac.PodSpec().
			WithServiceAccountName(Name(obd)).
			WithAutomountServiceAccountToken(false).
			WithEnableServiceLinks(false).
			WithSecurityContext(corev1ac.PodSecurityContext().
				WithRunAsNonRoot(true).
				WithSeccompProfile(corev1ac.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault))).
			WithContainers(container).
			WithVolumes(configVolume(obd, "config", keyConfig), secretsVolume(refs)))
}

// configDir is where the dispatcher's file is mounted, as configFile.
const (
	configDir  = "/etc/outbox/config"
	configFile = configDir + "/config.yaml"
)

// configVolume mounts one key of the ConfigMap as config.yaml.
func configVolume(obd *v1alpha1.OutboxDispatcher, name, key string) *corev1ac.VolumeApplyConfiguration {
	return corev1ac.Volume().WithName(name).WithConfigMap(corev1ac.ConfigMapVolumeSource().
		WithName(Name(obd)).
		WithItems(corev1ac.KeyToPath().WithKey(key).WithPath("config.yaml")))
}

// merge lays the user's template over the base. The result is checked strictly, so that a
// misspelled field is told rather than dropped. Errors wrap [ErrPodTemplate].
func merge(base *corev1ac.PodTemplateSpecApplyConfiguration, obd *v1alpha1.OutboxDispatcher) (*corev1ac.PodTemplateSpecApplyConfiguration, error) {
	if obd.Spec.PodTemplate == nil || len(obd.Spec.PodTemplate.Raw) == 0 {
		return base, nil
	}
	original, err := json.Marshal(base)
	if err != nil {
		return nil, err
	}
	merged, err := strategicpatch.StrategicMergePatch(original, obd.Spec.PodTemplate.Raw, corev1.PodTemplateSpec{})
	if err != nil {
		return nil, fmt.Errorf("%w: %w; see `kubectl explain deployment.spec.template` for what it can have", ErrPodTemplate, err)
	}
	strict, err := strictjson.UnmarshalStrict(merged, &corev1.PodTemplateSpec{})
	if err = errors.Join(append(strict, err)...); err != nil {
		return nil, fmt.Errorf("%w: %w; see `kubectl explain deployment.spec.template` for what it can have", ErrPodTemplate, err)
	}
	template := corev1ac.PodTemplateSpec()
	if err := json.Unmarshal(merged, template); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPodTemplate, err)
	}
	return template, keepsOurs(base, template)
}

// keepsOurs checks that the merged template has what the operator finds its pods by.
func keepsOurs(base, merged *corev1ac.PodTemplateSpecApplyConfiguration) error {
	for key, value := range base.Labels {
		if merged.ObjectMetaApplyConfiguration == nil || merged.Labels[key] != value {
			return fmt.Errorf("%w: it changes the label %s, by which the operator finds its pods; remove that label", ErrPodTemplate, key)
		}
	}
	for key, value := range base.Annotations {
		if merged.Annotations[key] != value {
			return fmt.Errorf("%w: it changes the annotation %s, which is the operator's; remove that annotation", ErrPodTemplate, key)
		}
	}
	if merged.Spec == nil || container(merged) == nil {
		return fmt.Errorf("%w: it removes the container %q; keep it", ErrPodTemplate, Container)
	}
	return nil
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
