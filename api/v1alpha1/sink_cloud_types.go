package v1alpha1

// PubSubSink publishes to a topic of Google Cloud Pub/Sub.
type PubSubSink struct{}

// ServiceBusSink sends to a queue or topic of Azure Service Bus.
type ServiceBusSink struct{}

// SNSSink publishes to a topic of Amazon SNS.
type SNSSink struct{}

// SQSSink sends to a queue of Amazon SQS.
type SQSSink struct{}
