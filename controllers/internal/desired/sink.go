package desired

import (
	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// SinkKind names the kind of sink, as the Sink column shows it.
func SinkKind(s v1alpha1.Sink) string { return new(mounts).sink(s).Kind() }

// sink is the section of the one kind that is set.
func (m *mounts) sink(s v1alpha1.Sink) (c config.Sink) {
	switch {
	case s.HTTP != nil:
		c.HTTP = m.http(s.HTTP)
	case s.Kafka != nil:
		c.Kafka = m.kafka(s.Kafka)
	case s.Log != nil:
		c.Log = &config.LogSink{Payload: config.LogPayload(s.Log.Payload)}
	case s.NATS != nil:
		c.NATS = m.nats(s.NATS)
	case s.Postgres != nil:
		c.Postgres = m.postgres(s.Postgres)
	case s.PubSub != nil:
		c.PubSub = pubSub(s.PubSub)
	case s.RabbitMQ != nil:
		c.RabbitMQ = m.rabbitMQ(s.RabbitMQ)
	case s.Redis != nil:
		c.Redis = m.redis(s.Redis)
	case s.ServiceBus != nil:
		c.ServiceBus = serviceBus(s.ServiceBus)
	case s.SNS != nil:
		c.SNS = sns(s.SNS)
	case s.SQS != nil:
		c.SQS = sqs(s.SQS)
	}
	return c
}
