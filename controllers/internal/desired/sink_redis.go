package desired

import (
	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

func (m *mounts) redis(s *v1alpha1.RedisSink) *config.RedisSink {
	c := &config.RedisSink{
		Addresses:   sorted(s.Addresses),
		Topology:    config.RedisTopology(s.Topology),
		Stream:      s.Stream,
		ContentMode: config.ContentMode(s.ContentMode),
		Replicas:    int(s.Replicas),
		Timeout:     config.Duration(s.Timeout.Duration),
		TLS:         m.tls("spec.sink.redis.tls", s.TLS),
	}
	if s.MaxLen != nil {
		c.MaxLen = *s.MaxLen
	}
	if s.Database != nil {
		c.Database = int(*s.Database)
	}
	if auth := s.Auth; auth != nil {
		c.Auth = &config.RedisAuth{
			Basic:        m.basic("spec.sink.redis.auth.basic", auth.Basic),
			PasswordFile: m.secretKey("spec.sink.redis.auth.password", auth.Password, "password"),
		}
	}
	return c
}
