package desired

import (
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
)

func rabbitMQSink(s *v1alpha1.RabbitMQSink) *config.RabbitMQSink {
	c := &config.RabbitMQSink{
		Addresses:      s.Addresses,
		VHost:          s.VHost,
		Exchange:       s.Exchange,
		RoutingKey:     s.RoutingKey,
		Mode:           config.RabbitMQMode(s.Mode),
		Channels:       int(s.Channels),
		ConnectionName: s.ConnectionName,
		Heartbeat:      config.Duration(s.Heartbeat.Duration),
		Timeout:        config.Duration(s.Timeout.Duration),
		Auth:           &config.RabbitMQAuth{Mechanism: s.Auth.Mechanism},
		TLS:            sinkTLS(s.TLS),
	}
	if s.Auth.Credentials != nil {
		c.Auth.UsernameFile, c.Auth.PasswordFile = Ref{Path: pathUsername}.File(), Ref{Path: pathPassword}.File()
	}
	return c
}

func rabbitMQRefs(s *v1alpha1.RabbitMQSink) []Ref {
	return append(credentialRefs("spec.sink.rabbitmq.auth.credentials", s.Auth.Credentials), tlsRefs("spec.sink.rabbitmq", s.TLS)...)
}
