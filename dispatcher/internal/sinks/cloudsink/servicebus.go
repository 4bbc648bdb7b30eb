package cloudsink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/go-amqp"
	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

const (
	serviceBusBatch = 100
	// serviceBusBytes is the most that any tier takes. The link says what this one takes.
	serviceBusBytes = 100 << 20
	serviceBusKey   = 128
	// goodbye is how long the service is given to confirm that a connection ends.
	goodbye = 2 * time.Second
	// serviceBusPrefix is that of the CloudEvents AMQP binding.
	serviceBusPrefix = "cloudEvents:"
)

// serviceBusService sends to queues and topics of one namespace, by their names.
type serviceBusService struct {
	namespace, entity string
	options           azservicebus.ClientOptions
	credential        func() (azcore.TokenCredential, error)

	noToken atomic.Pointer[noCredentials] // the newest failure to get a token

	// idle is how long a client is kept that no delivery uses: the service ends links and connections that are
	// idle, and the SDK reports that only when something was sent.
	idle time.Duration

	mu      sync.Mutex
	client  *azservicebus.Client
	senders map[string]*azservicebus.Sender
	using   int       // deliveries
	used    time.Time // when the last of them ended
	closing sync.WaitGroup
}

// NewServiceBus returns a sink for cfg. It fails when cfg contradicts itself; the environment and the
// service are first looked at by Probe and Deliver, so that what is wrong with them can heal. route says
// which queue or topic of the namespace an event goes to; nil is the configuration's, or the one of the
// event's own topic's name.
func NewServiceBus(cfg config.ServiceBusSink, route func(*dispatcher.Event) (string, error)) (dispatcher.Sink, error) {
	s, _, err := newServiceBus(cfg, route)
	if err != nil {
		return nil, err // not s, which would be a Sink that holds nil
	}
	return s, nil
}

func newServiceBus(cfg config.ServiceBusSink, route func(*dispatcher.Event) (string, error)) (*sink, *serviceBusService, error) {
	cfg.ApplyDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, nil, err
	}
	entity := cfg.Queue + cfg.Topic // at most one is set
	s := &serviceBusService{
		namespace: cfg.Namespace, entity: entity, idle: 30 * time.Second, senders: map[string]*azservicebus.Sender{},
		credential: func() (azcore.TokenCredential, error) { return azidentity.NewDefaultAzureCredential(nil) },
		options: azservicebus.ClientOptions{
			ApplicationID:  "outbox-dispatcher",
			CustomEndpoint: cfg.Endpoint,
			// One sending for each attempt: the engine retries (CONTRACT C-27).
			RetryOptions: azservicebus.RetryOptions{MaxRetries: -1},
		},
	}
	return (&sink{
		service: s, limits: limits{serviceBusBatch, serviceBusBytes}, class: "servicebus", batchSize: serviceBusBatch, timeout: cfg.Timeout.D(),
		encode: encoder("serviceBus", cfg.ContentMode, serviceBusPrefix),
	}).to(route, entity), s, nil
}

var serviceBusEntity = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9._/~-]*[A-Za-z0-9_])?$`)

func (s *serviceBusService) check(to string) error {
	if len(to) > 260 || !serviceBusEntity.MatchString(to) {
		return fmt.Errorf("%q is not a name that a queue or topic of Service Bus can have; set queue or topic, or use at most 260 characters of A-Z, a-z, 0-9 and ._-/", to)
	}
	return nil
}

func (s *serviceBusService) name(to string) string {
	if to == "" {
		to = s.entity
	}
	if to == "" {
		return "Service Bus at " + s.namespace
	}
	return to + " of Service Bus at " + s.namespace
}

// sender returns the sender of an entity, and the client that it belongs to. Nothing is dialled before
// its first use.
func (s *serviceBusService) sender(to string) (*azservicebus.Client, *azservicebus.Sender, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == nil {
		credential, err := s.credential()
		if err != nil {
			return nil, nil, &unsent{&noCredentials{err}}
		}
		client, err := azservicebus.NewClient(s.namespace, remembered{credential, &s.noToken}, &s.options)
		if err != nil {
			return nil, nil, &unsent{err}
		}
		s.client = client
	}
	if s.senders[to] == nil {
		sender, err := s.client.NewSender(to, nil)
		if err != nil {
			return nil, nil, &unsent{err}
		}
		s.senders[to] = sender
	}
	return s.client, s.senders[to], nil
}

// retire gives a client up whose connection may be dead: without retries the SDK would use it on and on.
// Deliveries that wait for responses on it fail; those are the ones that waited for the same service.
func (s *serviceBusService) retire(client *azservicebus.Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == client { // else it was given up before
		s.drop()
	}
}

// drop gives the client up. The caller holds s.mu.
func (s *serviceBusService) drop() {
	client := s.client
	s.client, s.senders = nil, map[string]*azservicebus.Sender{}
	s.closing.Go(func() { _ = closeClient(context.Background(), client) })
}

// use begins a delivery, with a new client if the old one was idle for long.
func (s *serviceBusService) use() (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil && s.using == 0 && time.Since(s.used) > s.idle {
		s.drop()
	}
	s.using++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.using--
		s.used = time.Now()
	}
}

// closeClient says goodbye to the service, if that is still there.
func closeClient(ctx context.Context, client *azservicebus.Client) error {
	ctx, cancel := context.WithTimeout(ctx, goodbye)
	defer cancel()
	return client.Close(ctx)
}

// remembered keeps why there is no token: the SDK hides the error in a text.
type remembered struct {
	azcore.TokenCredential
	failure *atomic.Pointer[noCredentials]
}

func (r remembered) GetToken(ctx context.Context, o policy.TokenRequestOptions) (azcore.AccessToken, error) {
	token, err := r.TokenCredential.GetToken(ctx, o)
	if r.failure.Store(nil); err != nil {
		r.failure.Store(&noCredentials{err})
	}
	return token, err
}

// send sends each message by itself, all at once on one link, because a batch has only one session and
// one response. Before that, the link is opened: a failure up to there sent nothing.
func (s *serviceBusService) send(ctx context.Context, to string, messages []*message) ([]error, error) {
	defer s.use()()
	client, sender, err := s.ready(ctx, to)
	if err != nil {
		return nil, err
	}
	errs := make([]error, len(messages))
	var wg sync.WaitGroup
	for i, m := range messages {
		wg.Go(func() {
			errs[i] = serviceBusFailure(sender.SendMessage(ctx, azureMessage(m), nil))
		})
	}
	wg.Wait()
	if slices.ContainsFunc(errs, unanswered) {
		s.retire(client)
	}
	return errs, nil
}

// unanswered reports whether the service said nothing, and the caller did not give up.
func unanswered(err error) bool {
	var response *refusal
	return err != nil && !errors.As(err, &response) && !errors.Is(err, context.Canceled)
}

// ready connects, logs in and opens the link, unless they are open.
func (s *serviceBusService) ready(ctx context.Context, to string) (*azservicebus.Client, *azservicebus.Sender, error) {
	client, sender, err := s.sender(to)
	if err != nil {
		return nil, nil, err
	}
	if _, err := sender.NewMessageBatch(ctx, nil); err != nil {
		if err = linkFailure(err); s.noToken.Load() != nil {
			err = &unsent{s.noToken.Load()}
		}
		if unanswered(err) {
			s.retire(client)
		}
		return nil, nil, err
	}
	return client, sender, nil
}

func azureMessage(m *message) *azservicebus.Message {
	properties := make(map[string]any, len(m.attributes))
	for name, value := range m.attributes {
		properties[name] = value
	}
	session, contentType := shortKey(m.key, serviceBusKey, nil), cmp.Or(m.contentType, event.ApplicationJSON)
	return &azservicebus.Message{
		Body: m.body, ContentType: &contentType, MessageID: &m.id, SessionID: &session, ApplicationProperties: properties,
	}
}

// linkFailure is a failure before anything was sent.
func linkFailure(err error) error {
	var response *azservicebus.Error
	var said *amqp.Error
	switch {
	case errors.As(err, &response) && response.Code == azservicebus.CodeNotFound,
		errors.As(err, &said) && said.Condition == amqp.ErrCondNotFound:
		return &refusal{word: reason.Refusing, code: string(amqp.ErrCondNotFound), noPlace: true, what: "responded " + string(amqp.ErrCondNotFound) + "; create it, or set queue or topic to one that exists"}
	case errors.As(err, &response) && response.Code == azservicebus.CodeUnauthorizedAccess:
		return &unsent{&noCredentials{errors.New("the service responds that access is not authorized: the identity needs the role Azure Service Bus Data Sender")}}
	case errors.As(err, &said):
		return &unsent{fmt.Errorf("the service responds %s", said.Condition)}
	default:
		return &unsent{errors.New(strings.TrimPrefix(err.Error(), "(connlost): "))}
	}
}

// serviceBusFailure says what the response to a message means to the sink. Only conditions are quoted.
func serviceBusFailure(err error) error {
	var said *amqp.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, azservicebus.ErrMessageTooLarge):
		return &refusal{word: reason.Refusing, code: string(amqp.ErrCondMessageSizeExceeded), tooLarge: true, what: "responded " + string(amqp.ErrCondMessageSizeExceeded)}
	case !errors.As(err, &said):
		return err
	}
	r := &refusal{word: reason.Refusing, code: string(said.Condition)}
	remedy := "the service's documentation says what it means"
	switch said.Condition {
	case amqp.ErrCondUnauthorizedAccess:
		r.noPlace = true
		r.word, remedy = reason.AuthenticationFailed, "give the dispatcher's identity the role Azure Service Bus Data Sender"
	case amqp.ErrCondResourceLimitExceeded:
		r.fault = true
		remedy = "it is full: let consumers take from it, or raise its size"
	case "com.microsoft:server-busy":
		r.fault = true
		remedy = "lower concurrency, or choose a larger tier"
	case amqp.ErrCondNotFound, "com.microsoft:entity-disabled":
		r.noPlace = true
		remedy = "create or enable it, or set queue or topic to one that takes messages"
	case amqp.ErrCondInternalError:
		r.fault = true
		remedy = "the service has trouble, and the event is retried"
	case amqp.ErrCondConnectionForced, amqp.ErrCondDetachForced, amqp.ErrCondLinkRedirect, "com.microsoft:timeout":
		return err // the connection ended, with no response about the message
	}
	r.what = fmt.Sprintf("responded %s; %s", said.Condition, remedy)
	return r
}

// probe opens a link to the configured queue or topic. Without one, that the namespace responds about a
// link is enough.
func (s *serviceBusService) probe(ctx context.Context) error {
	if s.entity != "" {
		_, _, err := s.ready(ctx, s.entity)
		return err
	}
	_, _, err := s.ready(ctx, "outbox-probe")
	var response *refusal
	if errors.As(err, &response) {
		return nil
	}
	return err
}

func (s *serviceBusService) close(ctx context.Context) error {
	s.mu.Lock()
	client := s.client
	s.client, s.senders = nil, map[string]*azservicebus.Sender{}
	s.mu.Unlock()
	defer s.closing.Wait()
	if client == nil {
		return nil
	}
	return closeClient(ctx, client)
}
