package desired

import (
	"fmt"
	"path"
	"slices"

	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// SchemaRef is a key of a ConfigMap that an entry of spec.validation names.
type SchemaRef struct {
	ConfigMap, Key string
	// Entry is the index of the entry.
	Entry int
}

// SchemaRefs are the keys of ConfigMaps that hold schemas.
func SchemaRefs(obd *v1alpha1.OutboxDispatcher) (refs []SchemaRef) {
	for i, v := range obd.Spec.Validation {
		if v.Schema != nil && v.Schema.ConfigMap != nil {
			refs = append(refs, SchemaRef{v.Schema.ConfigMap.Name, v.Schema.ConfigMap.Key, i})
		}
	}
	return refs
}

// File is where pods read the key, when they start.
func (r SchemaRef) File() string { return path.Join(schemasDir, r.path()) }

func (r SchemaRef) path() string { return fmt.Sprintf("%d.json", r.Entry) }

// Field is the field of the OutboxDispatcher that names the ConfigMap.
func (r SchemaRef) Field() string {
	return fmt.Sprintf("spec.validation[%d].schema.configMap", r.Entry)
}

// schemasDir is where the pods' schemas are mounted.
const schemasDir = "/etc/outbox/schemas"

// schemasVolume projects the refs' keys into one directory.
func schemasVolume(refs []SchemaRef) *corev1ac.VolumeApplyConfiguration {
	volume := corev1ac.ProjectedVolumeSource()
	for _, ref := range refs {
		volume.WithSources(corev1ac.VolumeProjection().WithConfigMap(
			corev1ac.ConfigMapProjection().WithName(ref.ConfigMap).
				WithItems(corev1ac.KeyToPath().WithKey(ref.Key).WithPath(ref.path()))))
	}
	return corev1ac.Volume().WithName("schemas").WithProjected(volume)
}

func routes(all []v1alpha1.Route) (c []config.Route) {
	for _, r := range all {
		c = append(c, config.Route{Topics: sorted(r.Topics), To: r.To})
	}
	return c
}

func validation(all []v1alpha1.Validation) (c []config.Validation) {
	for i, v := range all {
		made := config.Validation{Types: sorted(v.Types), Versions: sorted(v.Versions)}
		if s := v.Schema; s != nil {
			made.Schema = &config.PayloadSchema{Inline: s.Inline}
			if s.ConfigMap != nil {
				made.Schema.File = SchemaRef{Entry: i}.File()
			}
			if r := s.Registry; r != nil {
				made.Schema.Registry = &config.RegistrySchema{Subject: r.Subject}
				if r.Version != nil {
					made.Schema.Registry.Version = int(*r.Version)
				}
			}
		}
		for _, r := range v.Rules {
			made.Rules = append(made.Rules, config.Rule{Rule: r.Rule, Message: r.Message})
		}
		c = append(c, made)
	}
	return c
}

func transform(all []v1alpha1.Transformation) (c []config.Transformation) {
	for _, t := range all {
		c = append(c, config.Transformation{Types: sorted(t.Types), Payload: t.Payload})
	}
	return c
}

func message(m *v1alpha1.Message) (c config.Message) {
	if m == nil {
		return c
	}
	c.Format = config.MessageFormat(m.Format)
	for _, h := range m.Headers {
		if c.Headers == nil {
			c.Headers = map[string]string{}
		}
		c.Headers[h.Name] = h.Expression
	}
	return c
}

// sorted is a set: its order must not roll pods.
func sorted(set []string) []string { return slices.Sorted(slices.Values(set)) }
