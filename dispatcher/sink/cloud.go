//go:build !nocloud

package sink

import (
	"fmt"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudsink"
)

// cloud is a sink of a cloud's SDK. The build tag nocloud leaves them out.
func cloud(s spec.Sink, route func(*dispatcher.Event) (string, error)) (dispatcher.Sink, error) {
	switch s.Kind() {
	case "pubSub":
		return cloudsink.NewPubSub(*s.PubSub, route)
	case "serviceBus":
		return cloudsink.NewServiceBus(*s.ServiceBus, route)
	case "sns":
		return cloudsink.NewSNS(*s.SNS, route)
	case "sqs":
		return cloudsink.NewSQS(*s.SQS, route)
	}
	return nil, fmt.Errorf("sink.%s is not a cloud's", s.Kind())
}
