package cloudsink

import (
	"strings"
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// A route's name replaces the one that is configured, in the same account, project or namespace. What is
// no name, such as a way to another account, leads nowhere.
//
// CONTRACT: C-29
func TestRouteReplacesTheConfiguredName(t *testing.T) {
	const configured = "missing-one"
	for kind, open := range map[string]func(t *testing.T, to string, route func(*dispatcher.Event) (string, error)) (s *sink, arrived func() int){
		"SQS": func(t *testing.T, to string, route func(*dispatcher.Event) (string, error)) (*sink, func() int) {
			client, queueURL := newQueue(t, to)
			s, err := NewSQS(config.SQSSink{QueueURL: "http://" + awsServer.get(t).Address + "/" + account + "/" + configured}, route)
			return opened(t, s, err), func() int { return len(drain(t, client, queueURL)) }
		},
		"SNS": func(t *testing.T, to string, route func(*dispatcher.Event) (string, error)) (*sink, func() int) {
			queue, queueURL := newQueue(t, to)
			client := sns.NewFromConfig(awsTestConfig(t))
			topic, err := client.CreateTopic(t.Context(), &sns.CreateTopicInput{Name: &to})
			if err == nil {
				_, err = client.Subscribe(t.Context(), &sns.SubscribeInput{
					TopicArn: topic.TopicArn, Protocol: aws.String("sqs"), Endpoint: aws.String("arn:aws:sqs:eu-west-1:" + account + ":" + to),
				})
			}
			if err != nil {
				t.Fatal(err)
			}
			s, err := NewSNS(config.SNSSink{TopicARN: strings.TrimSuffix(*topic.TopicArn, to) + configured, Endpoint: "http://" + awsServer.get(t).Address}, route)
			return opened(t, s, err), func() int { return len(drain(t, queue, queueURL)) }
		},
		"PubSub": func(t *testing.T, to string, route func(*dispatcher.Event) (string, error)) (*sink, func() int) {
			server := pstest.NewServer()
			t.Cleanup(func() { _ = server.Close() })
			if _, err := server.GServer.CreateTopic(t.Context(), &pubsubpb.Topic{Name: "projects/shop-test/topics/" + to}); err != nil {
				t.Fatal(err)
			}
			s, err := NewPubSub(config.PubSubSink{Project: "shop-test", Topic: configured, Endpoint: "http://" + server.Addr}, route)
			return opened(t, s, err), func() int { return len(server.Messages()) }
		},
		"ServiceBus": func(t *testing.T, to string, route func(*dispatcher.Event) (string, error)) (*sink, func() int) {
			address := busServer.get(t).Address
			s := newServiceBusSink(t, address, configured, "", "good")
			return s.to(route, configured), func() int { return len(readQueue(t, address, to)) }
		},
	} {
		t.Run(kind, func(t *testing.T) {
			to := newName("")
			s, arrived := open(t, to, func(e *dispatcher.Event) (string, error) { return e.Topic, nil })
			inside, outside := newEvent(), newEvent()
			inside.Topic, outside.Topic = to, "https://elsewhere.example/"+to+"?"
			errs := s.Deliver(t.Context(), []*dispatcher.Event{inside, outside})
			if n := arrived(); errs[0] != nil || n != 1 {
				t.Errorf("%d events are where the route leads: %v", n, errs[0])
			}
			if errs[1] == nil || !strings.Contains(errs[1].Error(), "has no destination") {
				t.Errorf("a route that is not a name: %v", errs[1])
			}
		})
	}
}

// The region is that of the queue's URL, in each part of AWS.
func TestSQSRegion(t *testing.T) {
	for host, want := range map[string]string{
		"sqs.eu-west-1.amazonaws.com":      "eu-west-1",
		"sqs.cn-north-1.amazonaws.com.cn":  "cn-north-1",
		"sqs.eusc-de-east-1.amazonaws.eu":  "eusc-de-east-1",
		"vpce-1a2b.sqs.eu-west-1.vpce.aws": "",
	} {
		s, err := NewSQS(config.SQSSink{QueueURL: "https://" + host + "/" + account + "/orders"}, nil)
		if got := opened(t, s, err).service.(*awsService[*sqs.Client]).region; got != want {
			t.Errorf("the region of %s is %q, want %q", host, got, want)
		}
	}
}
