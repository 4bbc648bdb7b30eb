package config

// RabbitMQSink publishes to exchanges of RabbitMQ with confirms.
type RabbitMQSink struct{}

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (s *RabbitMQSink) ApplyDefaults() {}

func (s *RabbitMQSink) validate(p *problems) {}
