package desired

import (
	"slices"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
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

// ConfigMapNames are the names of all ConfigMaps that the spec names, each once.
func ConfigMapNames(obd *v1alpha1.OutboxDispatcher) (names []string) {
	for _, ref := range SchemaRefs(obd) {
		names = append(names, ref.ConfigMap)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// WithSchemas returns the OutboxDispatcher with what the refs lead to in their place. So the pods get
// schemas with their configuration, after the operator has seen that these can be used, and roll when one
// changes; a ConfigMap that is edited later breaks no pod that starts again.
func WithSchemas(obd *v1alpha1.OutboxDispatcher, texts map[SchemaRef]string) *v1alpha1.OutboxDispatcher {
	if len(texts) == 0 {
		return obd
	}
	obd = obd.DeepCopy()
	for ref, text := range texts {
		obd.Spec.Validation[ref.Entry].Schema = &v1alpha1.PayloadSchema{Inline: text}
	}
	return obd
}

func routes(all []v1alpha1.Route) (c []config.Route) {
	for _, r := range all {
		c = append(c, config.Route{Topics: sorted(r.Topics), To: r.To})
	}
	return c
}

func validation(all []v1alpha1.Validation) (c []config.Validation) {
	for _, v := range all {
		made := config.Validation{Types: sorted(v.Types)}
		if s := v.Schema; s != nil {
			made.Schema = &config.PayloadSchema{Inline: s.Inline}
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

// sorted is a set: its order must not roll pods.
func sorted(set []string) []string { return slices.Sorted(slices.Values(set)) }
