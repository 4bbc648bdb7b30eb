package cloudsink

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"regexp"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// sqsBytes is what SQS takes of a message, and of all messages in a request.
const sqsBytes = 1 << 20

var sqsRegion = regexp.MustCompile(`^sqs\.([a-z0-9-]+)\.amazonaws\.(com|eu)`)

// NewSQS returns a sink for cfg. route says which queue of the same account an event goes to, see [base.PlaceOf].
// It fails as [base.Made] says.
func NewSQS(cfg spec.SQSSink, route func(*dispatcher.Event) (string, error)) (dispatcher.Sink, error) {
	cfg.ApplyDefaults()
	s := &awsService[*sqs.Client]{what: "queue", longest: 80, publish: publishSQS, find: probeSQS, region: cfg.Region}
	s.base, s.own = split(cfg.QueueURL, '/')
	u, err := url.Parse(cfg.QueueURL)
	if err == nil {
		err = s.check(s.own)
	}
	if err != nil {
		return nil, fmt.Errorf("sink.sqs.queueURL: %w", err)
	}
	if found := sqsRegion.FindStringSubmatch(u.Hostname()); s.region == "" && found != nil {
		s.region = found[1]
	}
	endpoint := cmp.Or(string(cfg.Endpoint), u.Scheme+"://"+u.Host)
	s.make = func(c aws.Config, http aws.HTTPClient) *sqs.Client {
		return sqs.NewFromConfig(c, func(o *sqs.Options) { o.HTTPClient, o.BaseEndpoint = http, &endpoint })
	}
	return s.sink("sqs", cfg.Timeout.D(), sqsBytes, route), nil
}

func publishSQS(ctx context.Context, client *sqs.Client, queueURL string, entries []awsEntry) (outcomes, error) {
	in := &sqs.SendMessageBatchInput{QueueUrl: &queueURL}
	for _, e := range entries {
		attributes := map[string]types.MessageAttributeValue{}
		for name, value := range e.attributes {
			attributes[name] = types.MessageAttributeValue{DataType: aws.String(attributeType), StringValue: &value}
		}
		in.Entries = append(in.Entries, types.SendMessageBatchRequestEntry{
			Id: e.id, MessageBody: e.body, MessageAttributes: attributes, MessageGroupId: e.group, MessageDeduplicationId: e.once,
		})
	}
	out, err := client.SendMessageBatch(ctx, in)
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

func probeSQS(ctx context.Context, client *sqs.Client, queueURL string) error {
	_, err := client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: &queueURL, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn},
	})
	return err
}
