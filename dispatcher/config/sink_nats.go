package config

// NATSSink publishes to JetStream.
type NATSSink struct{}

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (s *NATSSink) ApplyDefaults() {}

func (s *NATSSink) validate(p *problems) {}
