// Package cloudsink sends events to the queues and topics of the clouds as CloudEvents 1.0: Amazon SQS
// and SNS, Google Cloud Pub/Sub and Azure Service Bus. Package cloudevent says which attributes they
// carry.
//
// dispatcher/sink/cloud.md has the settings, guarantees, outcomes and how to secure it.
package cloudsink
