package desired

import (
	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

func (m *mounts) rabbitMQ(s *v1alpha1.RabbitMQSink) *config.RabbitMQSink {
	return &config.RabbitMQSink{
		Addresses:       s.Addresses,
		VHost:           s.VHost,
		Exchange:        s.Exchange,
		RoutingKey:      s.RoutingKey,
		ContentMode:     config.ContentMode(s.ContentMode),
		AttributePrefix: s.AttributePrefix,
		Channels:        int(s.Channels),
		ConnectionName:  s.ConnectionName,
		Heartbeat:       config.Duration(s.Heartbeat.Duration),
		Timeout:         config.Duration(s.Timeout.Duration),
		Auth:            &config.RabbitMQAuth{Mechanism: s.Auth.Mechanism, Basic: m.basic("spec.sink.rabbitmq.auth.basic", s.Auth.Basic)},
		TLS:             m.tls("spec.sink.rabbitmq.tls", s.TLS),
	}
}
