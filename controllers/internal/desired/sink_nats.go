package desired

import (
	"slices"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
)

// What only NATS has, beside the paths in refs.go.
const (
	pathNATSCredentials = "sink/nats.creds"
	pathNKey            = "sink/nkey"
)

func natsSink(s *v1alpha1.NATSSink) *config.NATSSink {
	c := &config.NATSSink{
		Servers: slices.Sorted(slices.Values(s.Servers)), // a set: its order must not roll pods
		Subject: s.Subject,
		Stream:  s.Stream,
		Mode:    config.NATSMode(s.Mode),
		Timeout: config.Duration(s.Timeout.Duration),
		TLS:     sinkTLS(s.TLS),
	}
	if auth := s.Auth; auth != nil {
		c.Auth = &config.NATSAuth{}
		if auth.Credentials != nil {
			c.Auth.CredentialsFile = Ref{Path: pathNATSCredentials}.File()
		}
		if auth.NKey != nil {
			c.Auth.NKeyFile = Ref{Path: pathNKey}.File()
		}
		if auth.Basic != nil {
			c.Auth.Basic = &config.BasicAuth{UsernameFile: Ref{Path: pathUsername}.File(), PasswordFile: Ref{Path: pathPassword}.File()}
		}
		if auth.Token != nil {
			c.Auth.TokenFile = Ref{Path: pathToken}.File()
		}
	}
	return c
}

func natsRefs(s *v1alpha1.NATSSink) (refs []Ref) {
	if auth := s.Auth; auth != nil {
		refs = slices.Concat(
			keyRefs("spec.sink.nats.auth.credentials", auth.Credentials, pathNATSCredentials),
			keyRefs("spec.sink.nats.auth.nkey", auth.NKey, pathNKey),
			credentialRefs("spec.sink.nats.auth.basic", auth.Basic),
			keyRefs("spec.sink.nats.auth.token", auth.Token, pathToken),
		)
	}
	return append(refs, tlsRefs("spec.sink.nats", s.TLS)...)
}
