package config

// RedisSink adds to streams of Redis or Valkey.
type RedisSink struct{}

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (s *RedisSink) ApplyDefaults() {}

func (s *RedisSink) validate(p *problems) {}
