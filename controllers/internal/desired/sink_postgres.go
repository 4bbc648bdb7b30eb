package desired

import (
	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

func (m *mounts) postgres(s *v1alpha1.PostgresSink) *config.PostgresSink {
	return &config.PostgresSink{
		Database: m.inbox("spec.sink.postgres.database", s.Database),
		Table:    s.Table,
		Timeout:  config.Duration(s.Timeout.Duration),
	}
}
