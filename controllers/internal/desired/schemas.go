package desired

import (
	"cmp"
	"fmt"
	"path"

	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// SchemaRef is a key of a ConfigMap that an entry of spec.message.validation names.
type SchemaRef struct {
	ConfigMap, Key string
	// Entry is the index of the entry.
	Entry int
}

// SchemaRefs are the keys of ConfigMaps that hold schemas.
func SchemaRefs(obd *v1alpha1.OutboxDispatcher) (refs []SchemaRef) {
	for i, v := range obd.Spec.Message.Validation {
		if v.Schema != nil && v.Schema.ConfigMapRef != nil {
			refs = append(refs, SchemaRef{v.Schema.ConfigMapRef.Name, cmp.Or(v.Schema.ConfigMapRef.Key, "schema.json"), i})
		}
	}
	return refs
}

// File is where pods read the key, when they start.
func (r SchemaRef) File() string { return path.Join(schemasDir, r.path()) }

func (r SchemaRef) path() string { return fmt.Sprintf("%d.json", r.Entry) }

// Field is the field of the OutboxDispatcher that names the ConfigMap.
func (r SchemaRef) Field() string {
	return fmt.Sprintf("spec.message.validation[%d].schema.configMapRef", r.Entry)
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
