package desired

import (
	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

func (m *mounts) http(s *v1alpha1.HTTPSink) *config.HTTPSink {
	c := &config.HTTPSink{
		CaptureResponse: s.CaptureResponse,
		URL:             s.URL,
		ContentMode:     config.ContentMode(s.ContentMode),
		Timeout:         config.Duration(s.Timeout.Duration),
		Auth:            m.httpAuth("spec.sink.http.auth", s.Auth),
		Signing:         m.signing("spec.sink.http.signing", s.Signing),
		TLS:             m.tls("spec.sink.http.tls", s.TLS),
	}
	if s.BatchSize != nil {
		c.BatchSize = int(*s.BatchSize)
	}
	if s.MaxConnections != nil {
		c.MaxConnections = int(*s.MaxConnections)
	}
	for _, header := range s.Headers {
		if c.Headers == nil {
			c.Headers = map[string]string{}
		}
		c.Headers[header.Name] = header.Value
	}
	return c
}

func (m *mounts) signing(field string, s *v1alpha1.HTTPSigning) *config.HTTPSigning {
	if s == nil {
		return nil
	}
	return &config.HTTPSigning{SecretFile: m.secretKey(field+".secret", &s.Secret, "signing-secrets")}
}
