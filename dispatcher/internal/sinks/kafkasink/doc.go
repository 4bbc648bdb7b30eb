// Package kafkasink produces events to Apache Kafka as CloudEvents 1.0, in the binary or structured
// mode of the CloudEvents Kafka binding. Package cloudevent says which attributes they carry.
//
// dispatcher/sink/kafka.md has the settings, guarantees, outcomes and how to secure it.
package kafkasink
