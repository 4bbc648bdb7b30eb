package desired

import (
	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

func (m *mounts) nats(s *v1alpha1.NATSSink) *config.NATSSink {
	c := &config.NATSSink{
		Servers:     sorted(s.Servers),
		Subject:     s.Subject,
		Stream:      s.Stream,
		ContentMode: config.ContentMode(s.ContentMode),
		Timeout:     config.Duration(s.Timeout.Duration),
		TLS:         m.tls("spec.sink.nats.tls", s.TLS),
	}
	if auth := s.Auth; auth != nil {
		c.Auth = &config.NATSAuth{
			CredentialsFile: m.secretKey("spec.sink.nats.auth.credentials", auth.Credentials, "nats.creds"),
			NKeyFile:        m.secretKey("spec.sink.nats.auth.nkey", auth.NKey, "nkey"),
			Basic:           m.basic("spec.sink.nats.auth.basic", auth.Basic),
			TokenFile:       m.secretKey("spec.sink.nats.auth.token", auth.Token, "token"),
		}
	}
	return c
}
