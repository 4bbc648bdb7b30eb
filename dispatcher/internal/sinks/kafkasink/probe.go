package kafkasink

import (
	"context"
	"errors"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// The bits of a topic's authorized operations: Kafka's codes of its ACLs' operations.
const (
	mayWrite    = 1 << 4
	mayDescribe = 1 << 8
)

// probeTopic checks whether the topic is there, and whether the user may write it. Brokers before Kafka 2.3
// do not say the latter.
func (s *sink) probeTopic(ctx context.Context, ses *session) error {
	req := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = kmsg.StringPtr(s.topic.Only)
	req.Topics, req.AllowAutoTopicCreation, req.IncludeTopicAuthorizedOperations = append(req.Topics, topic), false, true
	result := make(chan *kmsg.MetadataResponse, 1) // which comes too late, if ctx ends
	err := bounded(ctx, min(s.timeout, connectTimeout), func(ctx context.Context) error {
		a, err := req.RequestWith(ctx, ses.client)
		result <- a
		return err
	})
	if err != nil {
		return s.Unreachable(ctx, err)
	}
	for _, t := range (<-result).Topics {
		err := kerr.ErrorForCode(t.ErrorCode)
		if rights := t.AuthorizedOperations; err == nil && rights&mayDescribe != 0 && rights&mayWrite == 0 {
			err = kerr.TopicAuthorizationFailed
		}
		var said *kerr.Error
		if errors.As(err, &said) {
			return dispatcher.Unavailable(s.refused(&kgo.Record{Topic: s.topic.Only}, said))
		}
	}
	return nil
}

// Limit is the sink's maxMessageBytes or, when every event goes to one topic whose settings the user may
// read, that topic's max.message.bytes if it is less.
func (s *sink) Limit(ctx context.Context) (bytes int, setting string) {
	bytes, setting = s.maxBytes, "maxMessageBytes"
	if s.topic.Only == "" {
		return bytes, setting
	}
	ses, err := s.newSession()
	if err != nil {
		return bytes, setting
	}
	defer s.shared.retire(ses)
	const name = "max.message.bytes"
	req := kmsg.NewPtrDescribeConfigsRequest()
	topic := kmsg.NewDescribeConfigsRequestResource()
	topic.ResourceType, topic.ResourceName, topic.ConfigNames = kmsg.ConfigResourceTypeTopic, s.topic.Only, []string{name}
	req.Resources = append(req.Resources, topic)
	result := make(chan *kmsg.DescribeConfigsResponse, 1)
	err = bounded(ctx, min(s.timeout, connectTimeout), func(ctx context.Context) error {
		a, err := req.RequestWith(ctx, ses.client)
		result <- a
		return err
	})
	if err != nil {
		return bytes, setting
	}
	for _, resource := range (<-result).Resources {
		for _, c := range resource.Configs {
			if c.Name != name || c.Value == nil {
				continue
			}
			if n, err := strconv.Atoi(*c.Value); err == nil && n < bytes {
				bytes, setting = n, name+" of topic "+s.topic.Only
			}
		}
	}
	return bytes, setting
}
