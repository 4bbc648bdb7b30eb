package cloudsink

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sns/types"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
)

// snsBytes is what SNS takes of a message, and of all messages in a request.
const snsBytes = 256 << 10

// snsService publishes to topics of one account and region, by their names.
type snsService struct {
	*awsClient[*sns.Client]
	// base is the topic's ARN up to its name; topic is its name.
	base, topic string
}

// NewSNS returns a sink for cfg. It fails when cfg contradicts itself; the environment and the service
// are first looked at by Probe and Deliver, so that what is wrong with them can heal. route says which
// topic of the same account and region an event goes to, by name; nil is the configuration's.
func NewSNS(cfg config.SNSSink, route func(*dispatcher.Event) (string, error)) (dispatcher.Sink, error) {
	cfg.ApplyDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	colon := strings.LastIndexByte(cfg.TopicARN, ':')
	s := &snsService{base: cfg.TopicARN[:colon+1], topic: cfg.TopicARN[colon+1:]}
	region := strings.Split(cfg.TopicARN, ":")[3]
	s.awsClient = newAWSClient(region, cfg.Timeout.D(), func(c aws.Config, http aws.HTTPClient) *sns.Client {
		return sns.NewFromConfig(c, func(o *sns.Options) {
			o.HTTPClient = http
			if cfg.Endpoint != "" {
				o.BaseEndpoint = &cfg.Endpoint
			}
		})
	})
	return &sink{
		service: s, limits: limits{awsBatch, snsBytes}, batchSize: awsBatch, timeout: cfg.Timeout.D(),
		encode:      encoder(config.CloudStructured, awsPrefix, awsAttributes...),
		destination: fixed(route, s.topic),
	}, nil
}

var snsTopic = regexp.MustCompile(`^[A-Za-z0-9_-]{1,256}(\.fifo)?$`)

func (s *snsService) check(to string) error {
	if !snsTopic.MatchString(to) {
		return fmt.Errorf("%q is no name that a topic of SNS can have; use at most 256 letters, digits, dashes and underscores", to)
	}
	return nil
}

func (s *snsService) name(to string) string {
	if to == "" {
		to = s.topic
	}
	return "topic " + s.base + to
}

func (s *snsService) send(ctx context.Context, to string, messages []*message) ([]error, error) {
	client, err := s.get(ctx)
	if err != nil {
		return nil, err
	}
	entries := make([]types.PublishBatchRequestEntry, len(messages))
	for i, m := range messages {
		e := types.PublishBatchRequestEntry{
			Id: aws.String(strconv.Itoa(i)), Message: aws.String(string(m.body)),
			MessageAttributes: map[string]types.MessageAttributeValue{},
		}
		awsText(m.contentType, m, func(name, value string) {
			e.MessageAttributes[name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &value}
		})
		if strings.HasSuffix(to, ".fifo") {
			e.MessageGroupId, e.MessageDeduplicationId = aws.String(shortKey(m.key, 128, groupForbidden)), &m.id
		}
		entries[i] = e
	}
	ctx, sent := watched(ctx)
	out, err := client.PublishBatch(ctx, &sns.PublishBatchInput{TopicArn: aws.String(s.base + to), PublishBatchRequestEntries: entries})
	if err != nil {
		return nil, awsFailure(sent, err)
	}
	answers := newAnswers(len(messages))
	for _, ok := range out.Successful {
		answers.set(ok.Id, nil)
	}
	for _, failed := range out.Failed {
		answers.set(failed.Id, awsRefusal(aws.ToString(failed.Code), false))
	}
	return answers, nil
}

func (s *snsService) probe(ctx context.Context) error {
	client, err := s.get(ctx)
	if err != nil {
		return err
	}
	ctx, _ = watched(ctx)
	_, err = client.GetTopicAttributes(ctx, &sns.GetTopicAttributesInput{TopicArn: aws.String(s.base + s.topic)})
	if awsDenied(err) {
		return nil
	}
	return awsFailure(&sending{}, err) // a probe sends no event
}
