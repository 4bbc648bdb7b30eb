package desired

import (
	"slices"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
)

// pathSigning is the file of the secrets that requests are signed with.
const pathSigning = "sink/signing-secrets"

func httpSink(s *v1alpha1.HTTPSink) *config.HTTPSink {
	c := &config.HTTPSink{
		URL:     s.URL,
		Mode:    config.HTTPMode(s.Mode),
		Timeout: config.Duration(s.Timeout.Duration),
		TLS:     sinkTLS(s.TLS),
	}
	if s.BatchSize != nil {
		c.BatchSize = int(*s.BatchSize)
	}
	if s.MaxConnections != nil {
		c.MaxConnections = int(*s.MaxConnections)
	}
	if s.Signing != nil {
		c.Signing = &config.HTTPSigning{SecretFile: Ref{Path: pathSigning}.File()}
	}
	for _, header := range s.Headers {
		if c.Headers == nil {
			c.Headers = map[string]string{}
		}
		c.Headers[header.Name] = header.Value
	}
	if auth := s.Auth; auth != nil {
		c.Auth = &config.HTTPAuth{}
		if auth.Bearer != nil {
			c.Auth.BearerTokenFile = Ref{Path: pathBearer}.File()
		}
		if auth.Basic != nil {
			c.Auth.Basic = &config.BasicAuth{UsernameFile: Ref{Path: pathUsername}.File(), PasswordFile: Ref{Path: pathPassword}.File()}
		}
	}
	return c
}

func httpRefs(s *v1alpha1.HTTPSink) (refs []Ref) {
	if auth := s.Auth; auth != nil {
		refs = slices.Concat(
			keyRefs("spec.sink.http.auth.bearer", auth.Bearer, pathBearer),
			credentialRefs("spec.sink.http.auth.basic", auth.Basic),
		)
	}
	if signing := s.Signing; signing != nil {
		refs = append(refs, keyRefs("spec.sink.http.signing.secret", &signing.Secret, pathSigning)...)
	}
	return append(refs, tlsRefs("spec.sink.http", s.TLS)...)
}
