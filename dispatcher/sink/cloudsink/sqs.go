package cloudsink

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/config"
)

// sqsBytes is what SQS takes of a message, and of all messages in a request.
const sqsBytes = 1 << 20

// sqsService sends to queues of one account, by their names.
type sqsService struct {
	*awsClient[*sqs.Client]
	// base is the queue's URL up to its name; queue is its name.
	base, queue string
}

// NewSQS returns a sink for cfg. It fails when cfg contradicts itself; the environment and the service
// are first looked at by Probe and Deliver, so that what is wrong with them can heal. route says which
// queue of the same account an event goes to, by name; nil is the configuration's.
func NewSQS(cfg config.SQSSink, route func(*dispatcher.Event) (string, error)) (dispatcher.Sink, error) {
	cfg.ApplyDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	slash := strings.LastIndexByte(cfg.QueueURL, '/')
	s := &sqsService{base: cfg.QueueURL[:slash+1], queue: cfg.QueueURL[slash+1:]}
	u, err := url.Parse(cfg.QueueURL)
	if err == nil {
		err = s.check(s.queue)
	}
	if err != nil {
		return nil, fmt.Errorf("sink.sqs.queueURL: %w", err)
	}
	endpoint := cfg.Endpoint
	if endpoint == "" {
		endpoint = u.Scheme + "://" + u.Host
	}
	region := cfg.Region
	if found := sqsRegion.FindStringSubmatch(u.Hostname()); region == "" && found != nil {
		region = found[1]
	}
	s.awsClient = newAWSClient(region, cfg.Timeout.D(), func(c aws.Config, http aws.HTTPClient) *sqs.Client {
		return sqs.NewFromConfig(c, func(o *sqs.Options) { o.HTTPClient, o.BaseEndpoint = http, &endpoint })
	})
	return &sink{
		service: s, limits: limits{awsBatch, sqsBytes}, batchSize: awsBatch, timeout: cfg.Timeout.D(),
		encode:      encoder(config.CloudStructured, awsPrefix, awsAttributes...),
		destination: fixed(route, s.queue),
	}, nil
}

var (
	sqsRegion = regexp.MustCompile(`^sqs\.([a-z0-9-]+)\.amazonaws\.com`)
	sqsQueue  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}(\.fifo)?$`)
)

func (s *sqsService) check(to string) error {
	if !sqsQueue.MatchString(to) {
		return fmt.Errorf("%q is no name that a queue of SQS can have; use at most 80 letters, digits, dashes and underscores", to)
	}
	return nil
}

func (s *sqsService) name(to string) string {
	if to == "" {
		to = s.queue
	}
	return "queue " + s.base + to
}

func (s *sqsService) send(ctx context.Context, to string, messages []*message) ([]error, error) {
	client, err := s.get(ctx)
	if err != nil {
		return nil, err
	}
	entries := make([]types.SendMessageBatchRequestEntry, len(messages))
	for i, m := range messages {
		e := types.SendMessageBatchRequestEntry{
			Id: aws.String(strconv.Itoa(i)), MessageBody: aws.String(string(m.body)),
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
	out, err := client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: aws.String(s.base + to), Entries: entries})
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

// answers are the outcomes of a request's messages, by their place.
type answers []error

// errNoAnswer stands until a message has its answer.
var errNoAnswer = errors.New("no answer about this message")

func newAnswers(n int) answers {
	a := make(answers, n)
	for i := range a {
		a[i] = errNoAnswer
	}
	return a
}

func (a answers) set(id *string, err error) {
	if i, bad := strconv.Atoi(aws.ToString(id)); bad == nil && i >= 0 && i < len(a) {
		a[i] = err
	}
}

func (s *sqsService) probe(ctx context.Context) error {
	client, err := s.get(ctx)
	if err != nil {
		return err
	}
	ctx, _ = watched(ctx)
	_, err = client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: aws.String(s.base + s.queue), AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn},
	})
	if awsDenied(err) {
		return nil
	}
	return awsFailure(&sending{}, err) // a probe sends no event
}
