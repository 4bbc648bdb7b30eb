package cloudsink

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/base"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// odd is a service with a destination that is silent, and one at which it panics.
type odd struct {
	service
	sent atomic.Int64 // to the silent one
}

func (o *odd) send(ctx context.Context, to string, messages []*message) ([]error, error) {
	switch to {
	case "silent":
		o.sent.Add(1)
		<-ctx.Done()
		return nil, ctx.Err()
	case "panics":
		panic("odd")
	}
	return make([]error, len(messages)), nil
}

// A destination that is silent gets no more of a batch than what was on its way, and the others get all of it. A
// panic is the caller's: elsewhere it would end the process.
//
// CONTRACT: C-32, C-33
func TestSilentDestinationGetsNoMoreOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := func() (*sink, *odd) {
			o := &odd{service: &pubsubService{}}
			return &sink{
				service: o, limits: limits{1, pubsubBytes}, timeout: time.Minute, encode: encoder("pubsub", spec.Binary, "ce-"),
				group: func(m *message) string { return m.key },
				place: base.PlaceOf(nil, ""),
			}, o
		}
		batch := func(n int, topic string, key func(int) string) (events []*dispatcher.Event) {
			for i := range n {
				e := sinktest.NewEvent()
				e.Topic, e.PartitionKey = topic, key(i)
				events = append(events, e)
			}
			return events
		}
		for name, key := range map[string]func(int) string{"many keys": strconv.Itoa, "one key": func(int) string { return "7" }} {
			s, o := open()
			events := append(batch(200, "silent", key), batch(200, "others", key)...)
			held := 0
			for i, err := range s.Deliver(t.Context(), events) {
				switch {
				case i >= 200:
					need.That(t, err == nil, "%s: another destination: %v", name, err)
				case dispatcher.IsUnavailable(err):
					held++
					sinktest.Outcome(t, name, err, sinktest.Unavailable, reason.ConnectionFailed, "gave no response to others of the batch, so this was not sent; ")
				default:
					sinktest.Outcome(t, name, err, sinktest.Failed, reason.ConnectionFailed, "gave no response within 1m0s; ")
				}
			}
			sent := int(o.sent.Load())
			if sent > requestsAtOnce || sent+held != 200 || name == "one key" && sent != 1 {
				t.Errorf("%s: %d requests to the silent destination, and %d events were held back", name, sent, held)
			}
			for _, others := range []int{0, 100} {
				func() {
					defer func() {
						need.Want(t, "odd", "%s, %d others: Deliver panicked with %v, want the service's value", recover(), name, others)
					}()
					s.Deliver(t.Context(), append(batch(100, "panics", key), batch(others, "others", key)...))
				}()
			}
		}
	})
}

// A message has 100 attributes at most: headers under their own names stop there, and their attributes have them all.
//
// CONTRACT: C-35, C-70
func TestPubSubMessagesHaveRoom(t *testing.T) {
	p, server := newPubSub(t, spec.Binary)
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, test := range []struct{ headers, own int }{{10, 10}, {70, -1}} { // -1: as many as there is room for
		e := sinktest.NewEvent()
		e.Headers = map[string]string{"traceparent": trace}
		e.Message.Headers = []dispatcher.Header{{Name: "Configured", Value: "x"}}
		for i := range test.headers {
			e.Headers[fmt.Sprintf("x-a-%d", i)] = "x"
		}
		need.OK(t, p.sink.Deliver(t.Context(), []*dispatcher.Event{e})[0])
		all := server.Messages()
		attributes := all[len(all)-1].Attributes
		counted := map[string]int{}
		for name := range attributes {
			counted[name[:min(4, len(name))]]++
		}
		if counted["ce-x"] != test.headers || attributes["Configured"] == "" || attributes["traceparent"] != trace || attributes["content-type"] == "" {
			t.Errorf("%d headers: the attributes are %q", test.headers, attributes)
		}
		if own := counted["x-a-"]; test.own >= 0 && own != test.own || test.own < 0 && len(attributes) != pubsubAttributes {
			t.Errorf("%d headers: %d under their own names, and %d attributes in all", test.headers, own, len(attributes))
		}
	}
}

// A route's name replaces the one that is configured, in the same account, project or namespace. What is
// no name, such as a way to another account, leads nowhere.
//
// CONTRACT: C-29
func TestRouteReplacesTheConfiguredName(t *testing.T) {
	const configured = "missing-one"
	for kind, open := range map[string]func(t *testing.T, to string, route func(*dispatcher.Event) (string, error)) (s *sink, arrived func() int){
		"SQS": func(t *testing.T, to string, route func(*dispatcher.Event) (string, error)) (*sink, func() int) {
			client, queueURL := newQueue(t, to)
			s, err := NewSQS(spec.SQSSink{QueueURL: "http://" + awsServer.Get(t).Address + "/" + account + "/" + configured}, route)
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
			need.OK(t, err)
			s, err := NewSNS(spec.SNSSink{TopicARN: strings.TrimSuffix(*topic.TopicArn, to) + configured, Endpoint: spec.CloudEndpoint("http://" + awsServer.Get(t).Address)}, route)
			return opened(t, s, err), func() int { return len(drain(t, queue, queueURL)) }
		},
		"PubSub": func(t *testing.T, to string, route func(*dispatcher.Event) (string, error)) (*sink, func() int) {
			server := pstest.NewServer()
			t.Cleanup(func() { _ = server.Close() })
			need.OK(t, need.Err(server.GServer.CreateTopic(t.Context(), &pubsubpb.Topic{Name: "projects/shop-test/topics/" + to})))
			s, err := NewPubSub(spec.PubSubSink{Project: "shop-test", Topic: configured, Endpoint: spec.CloudEndpoint("http://" + server.Addr)}, route)
			return opened(t, s, err), func() int { return len(server.Messages()) }
		},
		"ServiceBus": func(t *testing.T, to string, route func(*dispatcher.Event) (string, error)) (*sink, func() int) {
			address := busServer.Get(t).Address
			s := newServiceBusSink(address, configured, "", "good")
			s.place = base.PlaceOf(route, configured)
			return s, func() int { return len(readQueue(t, address, to)) }
		},
	} {
		t.Run(kind, func(t *testing.T) {
			to := newName("")
			s, arrived := open(t, to, func(e *dispatcher.Event) (string, error) { return e.Topic, nil })
			inside, outside := sinktest.NewEvent(), sinktest.NewEvent()
			inside.Topic, outside.Topic = to, "https://elsewhere.example/"+to+"?"
			errs := s.Deliver(t.Context(), []*dispatcher.Event{inside, outside})
			if n := arrived(); errs[0] != nil || n != 1 {
				t.Errorf("%d events are where the route leads: %v", n, errs[0])
			}
			need.That(t, errs[1] != nil && strings.Contains(errs[1].Error(), "has no destination"), "a route that is not a name: %v", errs[1])
		})
	}
}

// The region is that of the queue's URL, in each part of AWS.
func TestSQSRegionIsThatOfTheURL(t *testing.T) {
	for host, want := range map[string]string{
		"sqs.eu-west-1.amazonaws.com":      "eu-west-1",
		"sqs.cn-north-1.amazonaws.com.cn":  "cn-north-1",
		"sqs.eusc-de-east-1.amazonaws.eu":  "eusc-de-east-1",
		"vpce-1a2b.sqs.eu-west-1.vpce.aws": "",
	} {
		s, err := NewSQS(spec.SQSSink{QueueURL: "https://" + host + "/" + account + "/orders"}, nil)
		need.Want(t, want, "the region of %s is %q, want %q", opened(t, s, err).service.(*awsService[*sqs.Client]).region, host)
	}
}

// CONTRACT: C-32, C-73
func TestServiceBusResponsesNameTheRemedy(t *testing.T) {
	address := busServer.Get(t).Address
	for _, k := range []token{"wrong-" + sinktest.PasswordSecret, "expired-" + sinktest.PasswordSecret} {
		s := newServiceBusSink(address, newName(""), "", k)
		sinktest.Outcome(t, string(k), sinktest.Send(t, s), sinktest.Unavailable, reason.AuthenticationFailed, "Azure Service Bus Data Sender")
		sinktest.Outcome(t, string(k), s.Probe(t.Context()), sinktest.Unavailable, reason.AuthenticationFailed, "Azure Service Bus Data Sender")
	}
	full := newServiceBusSink(address, "full-"+newName(""), "", "good")
	sinktest.Outcome(t, "full", sinktest.Send(t, full), sinktest.Fault, reason.Refusing, "responded amqp:resource-limit-exceeded; it is full")
	missing := newServiceBusSink(address, "missing-"+newName(""), "", "good")
	sinktest.Outcome(t, "missing, Probe", missing.Probe(t.Context()), sinktest.Unavailable, reason.Refusing, "create it")
	// An identity that may send to its queues only is refused everywhere else, and events go to the queues of their topics.
	for _, k := range []token{"good", "own-queues"} {
		s := newServiceBusSink(address, "", "", k)
		if err := s.Probe(t.Context()); err != nil {
			t.Errorf("%s, Probe without a queue or topic: %v", k, err)
		}
		if err := sinktest.Send(t, s); err != nil {
			t.Errorf("%s, to the queue of the event's topic: %v", k, err)
		}
	}
}

// The SDK hides what the service responded in a text. It is read there, and it costs the other deliveries nothing: the
// connection is theirs too.
//
// CONTRACT: C-32, C-33
func TestServiceBusRefusalsKeepTheConnection(t *testing.T) {
	address := busServer.Get(t).Address
	for queue, want := range map[string]struct {
		is         sinktest.Class
		word, text string
		again      bool // the next event is taken, by another link
	}{
		"broken-":  {sinktest.Fault, reason.Refusing, "responded amqp:internal-error; the service has trouble", false},
		"invalid-": {sinktest.Failed, reason.Refusing, "responded com.microsoft:argument-error; ", false},
		"revoked-": {sinktest.Unavailable, reason.AuthenticationFailed, "responded amqp:unauthorized-access; give the dispatcher's identity the role", true},
	} {
		s := newServiceBusSink(address, queue+newName(""), "", "good")
		service := s.service.(*serviceBusService)
		need.OK(t, s.Probe(t.Context()))
		client := service.client // the deliveries use the connection of the probe
		sinktest.Outcome(t, queue, sinktest.Send(t, s), want.is, want.word, want.text)
		if err := sinktest.Send(t, s); (err == nil) != want.again {
			t.Errorf("%s: the next event: %v", queue, err)
		}
		need.That(t, service.client == client, "%s: the connection was given up", queue)
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	lost := newServiceBusSink(address, "lost-"+newName(""), "", "good")
	sinktest.Outcome(t, "the connection ends", sinktest.Send(t, lost), sinktest.Failed, reason.ConnectionFailed, "broke off, or gave no valid response")
}

// refusing refuses a number of requests for their credentials.
type refusing int

func (r *refusing) React(any) (handled bool, ret any, err error) {
	if *r--; *r >= 0 {
		return true, nil, status.Error(codes.Unauthenticated, sinktest.PayloadSecret)
	}
	return false, nil, nil
}

// A client of Pub/Sub reads the credentials when it is made, so one whose credentials are refused is replaced.
//
// CONTRACT: C-32, C-102
func TestPubSubReadsRefusedCredentialsAgain(t *testing.T) {
	refused := refusing(2)
	p, server := newPubSub(t, spec.Binary, pstest.ServerReactorOption{FuncName: "Publish", Reactor: &refused})
	service := p.sink.service.(*pubsubService)
	need.OK(t, p.sink.Probe(t.Context()))
	client := service.client
	sinktest.Outcome(t, "refused", sinktest.Send(t, p.sink), sinktest.Unavailable, reason.AuthenticationFailed, "check the credentials")
	need.Want(t, client, "a client is replaced at once: each refusal would read the environment again", service.client)
	client.made = time.Now().Add(-2 * reloadAfter)
	sinktest.Outcome(t, "refused, later", sinktest.Send(t, p.sink), sinktest.Unavailable, reason.AuthenticationFailed, "check the credentials")
	if err := sinktest.Send(t, p.sink); err != nil || len(server.Messages()) != 1 {
		t.Errorf("%d messages arrived: %v", len(server.Messages()), err)
	}
	if service.client == client {
		t.Error("the client with the credentials that are refused is kept")
	}
}
