// Package natssink publishes events to streams of NATS JetStream as CloudEvents 1.0, in the binary or
// structured mode of the CloudEvents NATS binding. Package cloudevent says which attributes they carry.
//
// dispatcher/sink/nats.md has the settings, guarantees, outcomes and how to secure it.
package natssink
