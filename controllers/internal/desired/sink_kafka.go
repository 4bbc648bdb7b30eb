package desired

import (
	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

func (m *mounts) kafka(s *v1alpha1.KafkaSink) *config.KafkaSink {
	c := &config.KafkaSink{
		Brokers:         sorted(s.Brokers),
		Topic:           s.Topic,
		ContentMode:     config.ContentMode(s.ContentMode),
		Encoding:        config.KafkaEncoding(s.Encoding),
		Subject:         s.Subject,
		ClientID:        s.ClientID,
		Compression:     s.Compression,
		MaxMessageBytes: int(s.MaxMessageBytes),
		Timeout:         config.Duration(s.Timeout.Duration),
		TLS:             m.tls("spec.sink.kafka.tls", s.TLS),
	}
	if auth := s.Auth; auth != nil {
		c.Auth = &config.KafkaAuth{
			Mechanism: auth.Mechanism,
			Basic:     m.basic("spec.sink.kafka.auth.basic", auth.Basic),
			TokenFile: m.secretKey("spec.sink.kafka.auth.token", auth.Token, "token"),
		}
	}
	return c
}
