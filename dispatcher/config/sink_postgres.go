package config

// PostgresSink inserts into the inbox table of another database, effectively once.
type PostgresSink struct{}

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (s *PostgresSink) ApplyDefaults() {}

func (s *PostgresSink) validate(p *problems) {}
