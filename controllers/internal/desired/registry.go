package desired

import (
	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

func (m *mounts) schemaRegistry(r *v1alpha1.SchemaRegistry) *config.SchemaRegistry {
	if r == nil {
		return nil
	}
	return &config.SchemaRegistry{
		URL:     r.URL,
		Refresh: config.Duration(r.Refresh.Duration),
		Auth:    m.httpAuth("spec.schemaRegistry.auth", r.Auth),
		TLS:     m.tls("spec.schemaRegistry.tls", r.TLS),
	}
}
