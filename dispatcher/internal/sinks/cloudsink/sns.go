package cloudsink

import (
	"context"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sns/types"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// snsBytes is what SNS takes of a message, and of all messages in a request.
const snsBytes = 256 << 10

// NewSNS returns a sink for cfg. route says which topic of the same account and region an event goes to, see [base.PlaceOf].
// It fails as [base.Made] says.
func NewSNS(cfg spec.SNSSink, route func(*dispatcher.Event) (string, error)) (dispatcher.Sink, error) {
	cfg.ApplyDefaults()
	s := &awsService[*sns.Client]{
		what: "topic", longest: 256, publish: publishSNS, find: probeSNS, region: strings.Split(cfg.TopicARN, ":")[3],
		make: func(c aws.Config, http aws.HTTPClient) *sns.Client {
			return sns.NewFromConfig(c, func(o *sns.Options) {
				o.HTTPClient = http
				if cfg.Endpoint != "" {
					o.BaseEndpoint = new(string(cfg.Endpoint))
				}
			})
		},
	}
	s.base, s.own = split(cfg.TopicARN, ':')
	return s.sink("sns", cfg.Timeout.D(), snsBytes, route), nil
}

func publishSNS(ctx context.Context, client *sns.Client, topic string, entries []awsEntry) (outcomes, error) {
	in := &sns.PublishBatchInput{TopicArn: &topic}
	for _, e := range entries {
		attributes := map[string]types.MessageAttributeValue{}
		for name, value := range e.attributes {
			attributes[name] = types.MessageAttributeValue{DataType: aws.String(attributeType), StringValue: &value}
		}
		in.PublishBatchRequestEntries = append(in.PublishBatchRequestEntries, types.PublishBatchRequestEntry{
			Id: e.id, Message: e.body, MessageAttributes: attributes, MessageGroupId: e.group, MessageDeduplicationId: e.once,
		})
	}
	out, err := client.PublishBatch(ctx, in)
	if err != nil {
		return nil, err
	}
	all := newOutcomes(entries)
	for _, ok := range out.Successful {
		all.set(ok.Id, nil)
	}
	for _, failed := range out.Failed {
		all.set(failed.Id, awsRefusal(aws.ToString(failed.Code), false, false))
	}
	return all, nil
}

func probeSNS(ctx context.Context, client *sns.Client, topic string) error {
	_, err := client.GetTopicAttributes(ctx, &sns.GetTopicAttributesInput{TopicArn: &topic})
	return err
}
