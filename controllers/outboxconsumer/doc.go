// Package outboxconsumer reconciles OutboxConsumers (CONTRACT C-82): it compares what is registered of a consumer with
// the dispatchers that feed it, and with the evidence that a pipeline has put into the status. It makes no object, polls
// no pod, and writes nothing but the status: what dispatchers have sent is in their own status.
package outboxconsumer
