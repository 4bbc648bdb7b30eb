package cloudsink

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/go-amqp"
	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/outboxtest"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/servers/cloud"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func TestMain(m *testing.M) {
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": sinktest.PasswordSecret, "AWS_REGION": "eu-west-1", "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
	} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	pgtest.Main(m)
}

// The servers end with this process.
var (
	awsServer = &need.Shared[*cloud.Server]{Missing: cloud.ErrMissing, Start: func(context.Context) (*cloud.Server, error) { return cloud.AWS(context.Background()) }}
	busServer = &need.Shared[*cloud.Server]{Missing: cloud.ErrMissing, Start: func(context.Context) (*cloud.Server, error) {
		return cloud.ServiceBus(context.Background())
	}}
)

// place is a queue or topic of a server, behind a gate.
type place struct {
	*gate
	sink    *sink
	arrived func() []sinktest.Message
	missing string
	refused dispatcher.Cause
	small   bool // the server takes no 900 KB, and says so
}

// destination is a place as sinktest.Exercise drives it.
func (p place) destination() sinktest.Destination {
	p.sink.timeout = need.Wait // the stand-ins are slow on a busy machine
	cannot := map[string]string{"Missing": "a queue or topic of a stand-in is not the account's to delete; TestCloudSinksReportServiceFaults has one that is missing"}
	if p.small || p.sink.bytes < 900<<10 {
		cannot["Large"] = "the service takes less"
	}
	return sinktest.Destination{
		Sink: p.sink, Arrived: p.arrived, Stop: p.close, Start: p.open, Hang: p.hangUp,
		Refuse:  sinktest.Divert(&p.sink.place.Of, p.missing),
		Refused: p.refused,
		Idle: func() {
			p.end()
			if bus, ok := p.sink.service.(*serviceBusService); ok { // it has a new client after half a minute
				bus.mu.Lock()
				bus.used = time.Time{}
				bus.mu.Unlock()
			}
		},
		Cannot: cannot,
	}
}

// keyed reports whether a group stands for the key that arrived: it is the key of the row, or a hash of one that
// the service does not take.
func keyed(group, key string) bool {
	odd := strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' })
	return sinktest.Arrives(group) == key || len(group) == sha256.Size*2 && (odd || len(key) > 100)
}

// opened is New's sink.
func opened(t *testing.T, s dispatcher.Sink, err error) *sink {
	t.Helper()
	need.OK(t, err)
	return s.(*sink)
}

func newName(suffix string) string { return "orders-" + uuid.NewString()[:8] + suffix }

const account = "123456789012"

func awsTestConfig(t *testing.T) aws.Config {
	cfg, err := awsconfig.LoadDefaultConfig(t.Context(), awsconfig.WithBaseEndpoint("http://"+awsServer.Get(t).Address))
	need.OK(t, err)
	cfg.HTTPClient = &http.Client{Transport: traced{transport(time.Minute)}}
	return cfg
}

func fifoAttributes(name string) map[string]string {
	if strings.HasSuffix(name, ".fifo") {
		return map[string]string{"FifoQueue": "true"}
	}
	return nil
}

func newQueue(t *testing.T, name string) (client *sqs.Client, queueURL string) {
	client = sqs.NewFromConfig(awsTestConfig(t))
	out, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: &name, Attributes: fifoAttributes(name)})
	need.OK(t, err)
	return client, *out.QueueUrl
}

// drain takes everything out of a queue.
func drain(t *testing.T, client *sqs.Client, queueURL string) (bodies []received) {
	for {
		out, err := client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{
			QueueUrl: &queueURL, MaxNumberOfMessages: 10, VisibilityTimeout: 1000,
			MessageAttributeNames: []string{"All"}, MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
		})
		if err != nil {
			t.Error(err)
			return bodies
		}
		if len(out.Messages) == 0 {
			return bodies
		}
		for _, m := range out.Messages {
			attributes := map[string]string{}
			for name, value := range m.MessageAttributes {
				attributes[name] = aws.ToString(value.StringValue)
			}
			bodies = append(bodies, received{aws.ToString(m.Body), attributes, m.Attributes})
			// A FIFO queue gives the next of a group when this one is gone.
			if _, err := client.DeleteMessage(t.Context(), &sqs.DeleteMessageInput{QueueUrl: &queueURL, ReceiptHandle: m.ReceiptHandle}); err != nil {
				t.Error(err)
			}
		}
	}
}

type received struct {
	body       string
	attributes map[string]string
	system     map[string]string
}

// message reads a message of SQS or SNS.
func (r received) message(t *testing.T) sinktest.Message {
	var e event.Event
	if err := json.Unmarshal([]byte(r.body), &e); err != nil {
		t.Fatalf("the body is not a CloudEvent: %v: %s", err, r.body)
	}
	m := sinktest.MessageOf(t, binding.ToMessage(&e))
	if r.attributes["content-type"] != "application/cloudevents+json" || r.attributes["ce_id"] != e.ID() || r.attributes["ce_type"] != e.Type() {
		t.Errorf("the message's attributes are %v", r.attributes)
	}
	return m
}

func newSQS(t *testing.T, suffix string) place {
	g := newGate(t, awsServer.Get(t).Address)
	name := newName(suffix)
	client, queueURL := newQueue(t, name)
	s, err := NewSQS(spec.SQSSink{QueueURL: "http://" + g.address + "/" + account + "/" + name}, nil)
	var all []sinktest.Message
	return place{gate: g, sink: opened(t, s, err), missing: "missing" + suffix, refused: dispatcher.Cause{Class: "sqs", Code: "NonExistentQueue"}, arrived: func() []sinktest.Message {
		for _, r := range drain(t, client, queueURL) {
			checkGroup(t, r, suffix, &all)
		}
		return all
	}}
}

func checkGroup(t *testing.T, r received, suffix string, all *[]sinktest.Message) {
	m := r.message(t)
	*all = append(*all, m)
	if suffix == ".fifo" && (!keyed(r.system["MessageGroupId"], m.Attributes["partitionkey"]) || r.system["MessageDeduplicationId"] != m.Attributes["id"]) {
		t.Errorf("the message's group and deduplication id are %v", r.system)
	}
}

func newSNS(t *testing.T, suffix string) place {
	g := newGate(t, awsServer.Get(t).Address)
	name := newName(suffix)
	queue, queueURL := newQueue(t, name)
	client := sns.NewFromConfig(awsTestConfig(t))
	var attributes map[string]string
	if suffix == ".fifo" {
		attributes = map[string]string{"FifoTopic": "true"}
	}
	topic, err := client.CreateTopic(t.Context(), &sns.CreateTopicInput{Name: &name, Attributes: attributes})
	need.OK(t, err)
	need.OK(t, need.Err(client.Subscribe(t.Context(), &sns.SubscribeInput{
		TopicArn: topic.TopicArn, Protocol: aws.String("sqs"), Attributes: map[string]string{"RawMessageDelivery": "true"},
		Endpoint: aws.String("arn:aws:sqs:eu-west-1:" + account + ":" + name),
	})))
	s, err := NewSNS(spec.SNSSink{TopicARN: *topic.TopicArn, Endpoint: spec.CloudEndpoint("http://" + g.address)}, nil)
	var all []sinktest.Message
	return place{gate: g, sink: opened(t, s, err), missing: "missing" + suffix, refused: dispatcher.Cause{Class: "sns", Code: "NotFound"}, arrived: func() []sinktest.Message {
		for _, r := range drain(t, queue, queueURL) {
			checkGroup(t, r, suffix, &all)
		}
		return all
	}}
}

// oneKey refuses a request of several ordering keys, as the service does.
type oneKey struct{}

func (oneKey) React(req any) (handled bool, ret any, err error) {
	messages := req.(*pubsubpb.PublishRequest).Messages
	for _, m := range messages {
		if m.OrderingKey != messages[0].OrderingKey {
			return true, nil, status.Error(codes.FailedPrecondition, "In a single publish request, all messages must have no ordering key or they must all have the same ordering key. (code=539b)")
		}
	}
	return false, nil, nil
}

func newPubSub(t *testing.T, mode spec.ContentMode, options ...pstest.ServerReactorOption) (place, *pstest.Server) {
	server := pstest.NewServer(append(options, pstest.ServerReactorOption{FuncName: "Publish", Reactor: oneKey{}})...)
	t.Cleanup(func() { _ = server.Close() })
	topic := newName("")
	need.OK(t, need.Err(server.GServer.CreateTopic(t.Context(), &pubsubpb.Topic{Name: "projects/shop-test/topics/" + topic})))
	g := newGate(t, server.Addr)
	s, err := NewPubSub(spec.PubSubSink{Project: "shop-test", Topic: topic, Access: spec.Access{ContentMode: mode}, Endpoint: spec.CloudEndpoint("http://" + g.address)}, nil)
	return place{gate: g, sink: opened(t, s, err), missing: "missing", refused: dispatcher.Cause{Class: "pubsub", Code: "NotFound"}, arrived: func() (all []sinktest.Message) {
		for _, m := range server.Messages() {
			got := httpMessage(t, m.Attributes["content-type"], "ce-", m.Attributes, m.Data)
			if key := got.Attributes["partitionkey"]; key == got.Attributes["id"] && m.OrderingKey != "" || key != got.Attributes["id"] && !keyed(m.OrderingKey, key) {
				t.Errorf("the ordering key is %q, want the event's %q, and none for its id", m.OrderingKey, key)
			}
			all = append(all, got)
		}
		return all
	}}, server
}

// httpMessage reads a message by the CloudEvents HTTP binding, whose names have another prefix.
func httpMessage(t *testing.T, contentType, prefix string, attributes map[string]string, body []byte) sinktest.Message {
	h := http.Header{"Content-Type": {contentType}}
	for name, value := range attributes {
		if name, ours := strings.CutPrefix(name, prefix); ours {
			h.Set("ce-"+name, value)
		}
	}
	return sinktest.MessageOf(t, cehttp.NewMessage(h, io.NopCloser(bytes.NewReader(body))))
}

// token is a credential of Azure's.
type token string

func (k token) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	if k == "" {
		return azcore.AccessToken{}, fmt.Errorf("no identity is configured")
	}
	return azcore.AccessToken{Token: string(k), ExpiresOn: time.Now().Add(time.Hour)}, nil
}

func newServiceBusSink(address, queue string, mode spec.ContentMode, k token) *sink {
	s, service := newServiceBus(spec.ServiceBusSink{Namespace: "shop.servicebus.example", Queue: queue, Access: spec.Access{ContentMode: mode}}, nil)
	service.credential = func() (azcore.TokenCredential, error) { return k, nil }
	// The stand-in speaks no TLS. Where the SDK puts a web socket goes a plain connection.
	service.options.NewWebSocketConn = func(ctx context.Context, _ azservicebus.NewWebSocketConnArgs) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	return s
}

func newServiceBusPlace(t *testing.T, mode spec.ContentMode) place {
	backend := busServer.Get(t).Address
	g := newGate(t, backend)
	queue := newName("")
	s := newServiceBusSink(g.address, queue, mode, "good")
	return place{gate: g, sink: s, small: true, missing: "missing-" + queue, refused: dispatcher.Cause{Class: "servicebus", Code: "amqp:not-found"}, arrived: func() []sinktest.Message {
		return readQueue(t, backend, queue)
	}}
}

// readQueue reads all that the stand-in has for a queue, with a client that knows nothing of Azure.
func readQueue(t *testing.T, address, queue string) (all []sinktest.Message) {
	ctx := t.Context()
	conn, err := amqp.Dial(ctx, "amqp://"+address, &amqp.ConnOptions{SASLType: amqp.SASLTypeAnonymous()})
	need.OK(t, err)
	defer func() { _ = conn.Close() }()
	session, err := conn.NewSession(ctx, nil)
	need.OK(t, err)
	// What this client sends itself, it receives after everything else.
	mark := uuid.NewString()
	sender, err := session.NewSender(ctx, queue, nil)
	if err == nil {
		err = sender.Send(ctx, &amqp.Message{Value: mark}, nil)
	}
	need.OK(t, err)
	receiver, err := session.NewReceiver(ctx, queue, &amqp.ReceiverOptions{Credit: 1000})
	need.OK(t, err)
	for {
		m, err := receiver.Receive(ctx, nil)
		need.OK(t, err)
		_ = receiver.AcceptMessage(ctx, m)
		switch m.Value {
		case mark:
			return all
		case nil: // not the mark of an earlier reading
			all = append(all, busMessage(t, m))
		}
	}
}

func busMessage(t *testing.T, m *amqp.Message) sinktest.Message {
	attributes := map[string]string{}
	for name, value := range m.ApplicationProperties {
		attributes[name] = value.(string)
	}
	got := httpMessage(t, *m.Properties.ContentType, serviceBusPrefix, attributes, m.GetData())
	if m.Properties.MessageID != got.Attributes["id"] || !keyed(*m.Properties.GroupID, got.Attributes["partitionkey"]) {
		t.Errorf("the message's id is %v and its session %v, and the event's %v", m.Properties.MessageID, *m.Properties.GroupID, got.Attributes)
	}
	return got
}

// CONTRACT: C-32, C-70, C-71, C-73
func TestCloudSinksMeetTheSinkContract(t *testing.T) {
	places := map[string]func(*testing.T) place{
		"SQS":      func(t *testing.T) place { return newSQS(t, "") },
		"SQS FIFO": func(t *testing.T) place { return newSQS(t, ".fifo") },
		"SNS":      func(t *testing.T) place { return newSNS(t, "") },
		"SNS FIFO": func(t *testing.T) place { return newSNS(t, ".fifo") },
	}
	for _, mode := range []spec.ContentMode{spec.Binary, spec.Structured} {
		places["PubSub "+string(mode)] = func(t *testing.T) place {
			p, _ := newPubSub(t, mode)
			return p
		}
		places["ServiceBus "+string(mode)] = func(t *testing.T) place { return newServiceBusPlace(t, mode) }
	}
	for name, open := range places {
		t.Run(name, func(t *testing.T) {
			sinktest.Exercise(t, func(t *testing.T) sinktest.Destination { return open(t).destination() })
		})
	}
}

// A whole outbox arrives, in the order of its keys, though every connection breaks half-way. The
// stand-ins are slow, so the events are few.
//
// CONTRACT: C-27, C-50, C-70, C-71
func TestOutboxArrivesThoughConnectionsBreak(t *testing.T) {
	for name, test := range map[string]struct {
		open   func(*testing.T) place
		events int
	}{
		"SQS FIFO":   {func(t *testing.T) place { return newSQS(t, ".fifo") }, 100},
		"SNS FIFO":   {func(t *testing.T) place { return newSNS(t, ".fifo") }, 100},
		"PubSub":     {func(t *testing.T) place { p, _ := newPubSub(t, spec.Binary); return p }, 5000},
		"ServiceBus": {func(t *testing.T) place { return newServiceBusPlace(t, spec.Binary) }, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			events := outboxtest.Events(t, test.events)
			p := test.open(t)
			outboxtest.Deliver(t, outboxtest.Run{
				Sink: p.sink, Events: events, Keys: events / 10, Arrived: p.arrived,
				Halfway: func() {
					p.close()
					p.open()
				},
			})
		})
	}
}
