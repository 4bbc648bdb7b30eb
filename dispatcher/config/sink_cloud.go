package config

// PubSubSink publishes to a topic of Google Cloud Pub/Sub.
type PubSubSink struct{}

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (s *PubSubSink) ApplyDefaults() {}

func (s *PubSubSink) validate(p *problems) {}

// ServiceBusSink sends to a queue or topic of Azure Service Bus.
type ServiceBusSink struct{}

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (s *ServiceBusSink) ApplyDefaults() {}

func (s *ServiceBusSink) validate(p *problems) {}

// SNSSink publishes to a topic of Amazon SNS.
type SNSSink struct{}

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (s *SNSSink) ApplyDefaults() {}

func (s *SNSSink) validate(p *problems) {}

// SQSSink sends to a queue of Amazon SQS.
type SQSSink struct{}

// ApplyDefaults sets the fields that are not set to the defaults in their comments.
func (s *SQSSink) ApplyDefaults() {}

func (s *SQSSink) validate(p *problems) {}
