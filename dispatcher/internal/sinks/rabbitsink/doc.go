// Package rabbitsink publishes events to RabbitMQ by AMQP 0-9-1 as CloudEvents 1.0, in the binary or
// structured mode. Package cloudevent says which attributes they carry.
//
// dispatcher/sink/rabbitmq.md has the settings, guarantees, outcomes and how to secure it.
package rabbitsink
