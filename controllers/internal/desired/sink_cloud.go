package desired

import (
	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// The clouds' sinks name no Secrets: credentials are the pods' identity.

func sqs(s *v1alpha1.SQSSink) *config.SQSSink {
	return &config.SQSSink{
		QueueURL: s.QueueURL, Region: s.Region, Endpoint: string(s.Endpoint), Timeout: config.Duration(s.Timeout.Duration),
	}
}

func sns(s *v1alpha1.SNSSink) *config.SNSSink {
	return &config.SNSSink{TopicARN: s.TopicARN, Endpoint: string(s.Endpoint), Timeout: config.Duration(s.Timeout.Duration)}
}

func pubSub(s *v1alpha1.PubSubSink) *config.PubSubSink {
	return &config.PubSubSink{
		Project: s.Project, Topic: s.Topic, ContentMode: config.ContentMode(s.ContentMode),
		Endpoint: string(s.Endpoint), Timeout: config.Duration(s.Timeout.Duration),
	}
}

func serviceBus(s *v1alpha1.ServiceBusSink) *config.ServiceBusSink {
	return &config.ServiceBusSink{
		Namespace: s.Namespace, Queue: s.Queue, Topic: s.Topic, ContentMode: config.ContentMode(s.ContentMode),
		Endpoint: s.Endpoint, Timeout: config.Duration(s.Timeout.Duration),
	}
}
