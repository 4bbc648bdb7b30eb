package cloudsink

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"sync"
	"time"

	pubsub "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/base"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

const (
	pubsubBytes      = 10_000_000 // of a message, and of a request
	pubsubBatch      = 500
	pubsubKey        = 1024
	pubsubAttributes = 100 // of a message
)

// pubsubService publishes to topics of one project, by their names.
type pubsubService struct {
	project, topic string
	options        []option.ClientOption

	mu     sync.Mutex
	client *pubsubClient
}

// pubsubClient has the credentials that were there when it was made.
type pubsubClient struct {
	*pubsub.TopicAdminClient
	made  time.Time
	calls sync.WaitGroup
}

// NewPubSub returns a sink for cfg. route says which topic of the project an event goes to, see [base.PlaceOf].
// It fails as [base.Made] says.
func NewPubSub(cfg spec.PubSubSink, route func(*dispatcher.Event) (string, error)) (dispatcher.Sink, error) {
	cfg.ApplyDefaults()
	s := &pubsubService{project: cfg.Project, topic: cfg.Topic, options: pubsubOptions(cfg)}
	return &sink{
		service: s, limits: limits{pubsubBatch, pubsubBytes}, class: "pubsub", batchSize: pubsubBatch, timeout: cfg.Timeout.D(),
		encode: encoder("pubSub", cfg.ContentMode, "ce-"), group: orderingKey, place: base.PlaceOf(route, cfg.Topic),
	}, nil
}

func pubsubOptions(cfg spec.PubSubSink) []option.ClientOption {
	dial := []grpc.DialOption{
		grpc.WithStatsHandler(sentHandler{}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: time.Minute, Timeout: cfg.Timeout.D()}),
		// The engine decides when to try again; a service that has recovered is found soon.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: cfg.Timeout.D(),
		}),
	}
	options := []option.ClientOption{option.WithTelemetryDisabled()}
	if u, err := url.Parse(string(cfg.Endpoint)); err == nil && cfg.Endpoint != "" {
		host := u.Host
		if u.Scheme == "http" {
			options = append(options, option.WithoutAuthentication())
			dial = append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()))
		} else if u.Port() == "" {
			host += ":443"
		}
		options = append(options, option.WithEndpoint(host))
	}
	for _, d := range dial {
		options = append(options, option.WithGRPCDialOption(d))
	}
	return options
}

// sentHandler notifies a call's sending when something of it goes out.
type sentHandler struct{}

func (sentHandler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (sentHandler) HandleRPC(ctx context.Context, s stats.RPCStats) {
	switch s.(type) {
	case *stats.OutHeader, *stats.OutPayload:
		if sent, ok := ctx.Value(sendingKey{}).(*sending); ok {
			sent.begun.Store(true)
		}
	}
}

func (sentHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (sentHandler) HandleConn(context.Context, stats.ConnStats)                       {}

var pubsubTopic = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._~+%-]{2,}$`)

func (s *pubsubService) check(to string) error {
	if len(to) > 255 || !pubsubTopic.MatchString(to) {
		return fmt.Errorf("%q is not a name that a topic of Pub/Sub can have; set topic, or use 3 to 255 characters of A-Z, a-z, 0-9 and -._~+%%, the first of A-Z and a-z", to)
	}
	return nil
}

func (s *pubsubService) name(to string) string {
	if to == "" {
		to = s.topic
	}
	if to == "" {
		return "Pub/Sub of projects/" + s.project
	}
	return "topic projects/" + s.project + "/topics/" + to
}

func (s *pubsubService) path(to string) string { return "projects/" + s.project + "/topics/" + to }

// get returns the client. When the caller has used it, it says so by calls.Done.
func (s *pubsubService) get() (*pubsubClient, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == nil {
		// Not a delivery's context: it would end the connection's credentials.
		client, err := pubsub.NewTopicAdminClient(context.Background(), s.options...)
		if err != nil {
			return nil, &unsent{&noCredentials{err}}
		}
		// One sending for each attempt: the engine retries (CONTRACT C-27).
		client.CallOptions.Publish, client.CallOptions.GetTopic = nil, nil
		s.client = &pubsubClient{TopicAdminClient: client, made: time.Now()}
	}
	s.client.calls.Add(1)
	return s.client, nil
}

// reloadAfter is how long a client is kept at least, whatever its credentials are worth.
const reloadAfter = 5 * time.Second

// failure says what a call's error means to the sink. After one about its credentials, the next call makes a new client, which
// reads them again, and this one ends when its calls have ended.
func (s *pubsubService) failure(client *pubsubClient, sent *sending, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == client && status.Code(err) == codes.Unauthenticated && time.Since(client.made) > reloadAfter {
		s.client = nil
		go func() {
			client.calls.Wait()
			_ = client.Close() // it sends nothing
		}()
	}
	return pubsubFailure(sent, err)
}

// orderingKey is the message's ordering key. The service refuses a request whose messages have several. So messages that
// no other has to be in order with have none: they share requests.
func orderingKey(m *message) string {
	if m.alone {
		return ""
	}
	return shortKey(m.key, pubsubKey, nil)
}

func (s *pubsubService) send(ctx context.Context, to string, messages []*message) ([]error, error) {
	client, err := s.get()
	if err != nil {
		return nil, err
	}
	defer client.calls.Done()
	req := &pubsubpb.PublishRequest{Topic: s.path(to), Messages: make([]*pubsubpb.PubsubMessage, len(messages))}
	for i, m := range messages {
		attributes := m.attributes
		if m.contentType != "" {
			attributes["content-type"] = m.contentType // attributes' names have a case
		}
		req.Messages[i] = &pubsubpb.PubsubMessage{
			Data: m.body, Attributes: attributes, OrderingKey: orderingKey(m),
		}
	}
	ctx, sent := watched(ctx)
	out, err := client.Publish(ctx, req)
	if err != nil {
		return nil, s.failure(client, sent, err)
	}
	if len(out.MessageIds) != len(messages) {
		return nil, errNoResponse
	}
	return make([]error, len(messages)), nil
}

// pubsubFailure says what a call's error means to the sink. A code that gRPC itself gives, for want of
// a response, is distinguished from the service's by what was sent and by the code.
func pubsubFailure(sent *sending, err error) error {
	code := status.Code(err)
	r := &refusal{word: reason.Refusing, code: code.String()}
	var remedy string
	switch {
	case !sent.begun.Load() && code == codes.Unauthenticated:
		return &unsent{&noCredentials{errors.New(status.Convert(err).Message())}}
	case !sent.begun.Load():
		return &unsent{errors.New(status.Convert(err).Message())}
	case code == codes.Unauthenticated:
		r.unauthenticated = true
		r.word, remedy = reason.AuthenticationFailed, "check the credentials in the environment"
	case code == codes.PermissionDenied:
		r.noPlace = true
		r.word, remedy = reason.AuthenticationFailed, "give the dispatcher's service account the role roles/pubsub.publisher, and check that the project has the Pub/Sub API enabled"
	case code == codes.NotFound:
		r.noPlace = true
		remedy = "create the topic, or set topic and project to one that exists"
	case code == codes.ResourceExhausted:
		r.fault = true
		remedy = "lower concurrency, or request a higher quota"
	case code == codes.FailedPrecondition: // it speaks of the project and the topic
		r.noPlace = true
		remedy = "enable the project's billing and the topic's key, or publish from a region that the topic's message storage policy allows"
	case code == codes.InvalidArgument:
		r.perMessage = true
		remedy = "the message may break the topic's schema, or a limit of Pub/Sub such as 100 attributes or 1024 bytes of one"
	case code == codes.Internal, code == codes.Aborted:
		r.fault = true
		remedy = "the service has trouble, and the event is retried"
	case code == codes.Unavailable: // the service's own word for its trouble, or gRPC's for no response
		return dispatcher.DestinationFault(err)
	default: // DeadlineExceeded, Canceled, Unknown: no response
		return err
	}
	r.what = fmt.Sprintf("responded %s; %s", code, remedy)
	return r
}

// probe checks the topic. A refusal because the identity may only publish is a response too.
func (s *pubsubService) probe(ctx context.Context) error {
	client, err := s.get()
	if err != nil {
		return err
	}
	defer client.calls.Done()
	topic := s.topic
	if topic == "" {
		topic = "outbox-probe"
	}
	ctx, sent := watched(ctx)
	_, err = client.GetTopic(ctx, &pubsubpb.GetTopicRequest{Topic: s.path(topic)})
	switch code := status.Code(err); {
	case err == nil, code == codes.PermissionDenied && sent.begun.Load(), code == codes.NotFound && s.topic == "":
		return nil
	default:
		return sent.probed(s.failure(client, sent, err))
	}
}

func (s *pubsubService) close(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == nil {
		return nil
	}
	client := s.client
	s.client = nil
	return client.Close()
}
