package v1alpha1

// RabbitMQSink publishes to exchanges of RabbitMQ with confirms.
type RabbitMQSink struct{}
