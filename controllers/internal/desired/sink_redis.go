package desired

import (
	"slices"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
)

func redisSink(s *v1alpha1.RedisSink) *config.RedisSink {
	c := &config.RedisSink{
		Addresses: slices.Sorted(slices.Values(s.Addresses)), // a set: its order must not roll pods
		Cluster:   s.Cluster,
		Stream:    s.Stream,
		Mode:      config.RedisMode(s.Mode),
		Replicas:  int(s.Replicas),
		Timeout:   config.Duration(s.Timeout.Duration),
		TLS:       sinkTLS(s.TLS),
	}
	if s.MaxLen != nil {
		c.MaxLen = *s.MaxLen
	}
	if s.Database != nil {
		c.Database = int(*s.Database)
	}
	if auth := s.Auth; auth != nil {
		c.PasswordFile = Ref{Path: pathPassword}.File()
		if auth.Basic != nil {
			c.UsernameFile = Ref{Path: pathUsername}.File()
		}
	}
	return c
}

func redisRefs(s *v1alpha1.RedisSink) (refs []Ref) {
	if auth := s.Auth; auth != nil {
		refs = slices.Concat(
			credentialRefs("spec.sink.redis.auth.basic", auth.Basic),
			keyRefs("spec.sink.redis.auth.password", auth.Password, pathPassword),
		)
	}
	return append(refs, tlsRefs("spec.sink.redis", s.TLS)...)
}
