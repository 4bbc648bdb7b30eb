package desired

import (
	"slices"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
)

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
	return append(refs, tlsRefs("spec.sink.http", s.TLS)...)
}
