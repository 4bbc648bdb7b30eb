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

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/base"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

const (
	serviceBusBatch = 100
	// serviceBusBytes is the most that any tier takes. The link says what this one takes.
	serviceBusBytes = 100 << 20
	serviceBusKey   = 128
	// goodbye is how long the service is given to confirm that a connection ends.
	goodbye = 2 * time.Second
	// serviceBusPrefix is the prefix of the CloudEvents AMQP binding.
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
	senders map[string]*serviceBusLink
	using   int       // deliveries
	used    time.Time // when the last of them ended
	closing sync.WaitGroup
}

// serviceBusLink is the link to a queue or topic. The SDK opens it at its first use.
type serviceBusLink struct {
	*azservicebus.Sender
	using sync.WaitGroup
}

// NewServiceBus returns a sink for cfg. route says which queue or topic of the namespace an event goes to, see [base.PlaceOf].
// It never fails.
func NewServiceBus(cfg spec.ServiceBusSink, route func(*dispatcher.Event) (string, error)) (dispatcher.Sink, error) {
	s, _ := newServiceBus(cfg, route)
	return s, nil
}

func newServiceBus(cfg spec.ServiceBusSink, route func(*dispatcher.Event) (string, error)) (*sink, *serviceBusService) {
	cfg.ApplyDefaults()
	entity := cfg.Queue + cfg.Topic // at most one is set
	s := &serviceBusService{
		namespace: cfg.Namespace, entity: entity, idle: 30 * time.Second, senders: map[string]*serviceBusLink{},
		credential: func() (azcore.TokenCredential, error) { return azidentity.NewDefaultAzureCredential(nil) },
		options: azservicebus.ClientOptions{
			ApplicationID:  "outbox-dispatcher",
			CustomEndpoint: cfg.Endpoint,
			// One sending for each attempt: the engine retries (CONTRACT C-27).
			RetryOptions: azservicebus.RetryOptions{MaxRetries: -1},
		},
	}
	return &sink{
		service: s, limits: limits{serviceBusBatch, serviceBusBytes}, class: "servicebus", batchSize: serviceBusBatch, timeout: cfg.Timeout.D(),
		encode: encoder("serviceBus", cfg.ContentMode, serviceBusPrefix), place: base.PlaceOf(route, entity),
	}, s
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

// sender returns the link to an entity, and the client that it belongs to. When the caller has used the link, it says so by
// using.Done. Nothing is dialled before its first use.
func (s *serviceBusService) sender(to string) (*azservicebus.Client, *serviceBusLink, error) {
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
		s.client, s.used = client, time.Now()
	}
	if s.senders[to] == nil {
		sender, err := s.client.NewSender(to, nil)
		if err != nil {
			return nil, nil, &unsent{err}
		}
		s.senders[to] = &serviceBusLink{Sender: sender}
	}
	s.senders[to].using.Add(1)
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

// reopen gives a link up that may have ended: without retries the SDK would use it on and on. The connection stays, because
// others use it, and so does the link until the deliveries on it have their responses.
func (s *serviceBusService) reopen(to string, link *serviceBusLink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.senders[to] != link { // it was given up before
		return
	}
	delete(s.senders, to)
	s.closing.Go(func() {
		link.using.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), goodbye)
		defer cancel()
		_ = link.Close(ctx) // the end of its connection ends it too
	})
}

// drop gives the client up. The caller holds s.mu.
func (s *serviceBusService) drop() {
	client := s.client
	s.client, s.senders = nil, map[string]*serviceBusLink{}
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
	client, link, err := s.ready(ctx, to, 1)
	if err != nil {
		return nil, err
	}
	defer link.using.Done()
	errs := make([]error, len(messages))
	var wg sync.WaitGroup
	for i, m := range messages {
		wg.Go(func() {
			errs[i] = serviceBusFailure(link.SendMessage(ctx, azureMessage(m), nil))
		})
	}
	wg.Wait()
	switch {
	case slices.ContainsFunc(errs, unanswered):
		s.retire(client)
	case slices.ContainsFunc(errs, endsLink):
		s.reopen(to, link)
	}
	return errs, nil
}

// endsLink reports whether a refusal may have ended the link.
func endsLink(err error) bool {
	var response *refusal
	return errors.As(err, &response) && response.endsLink
}

// unanswered reports whether the service said nothing, and the caller did not give up.
func unanswered(err error) bool {
	var response *refusal
	return err != nil && !errors.As(err, &response) && !errors.Is(err, context.Canceled)
}

// ready connects, logs in and opens the link, unless they are open. own is how many deliveries the caller is: a probe is none.
func (s *serviceBusService) ready(ctx context.Context, to string, own int) (*azservicebus.Client, *serviceBusLink, error) {
	client, link, err := s.sender(to)
	if err != nil {
		return nil, nil, err
	}
	if _, err := link.NewMessageBatch(ctx, nil); err != nil {
		link.using.Done()
		if err = linkFailure(err); s.noToken.Load() != nil {
			err = &unsent{s.noToken.Load()}
		}
		// A connection that the service closed for want of access says the same as a link that it did not open. So it is
		// given up too, unless other deliveries use it.
		if unanswered(err) || unauthenticated(err) && s.deliveries() <= own {
			s.retire(client)
		}
		return nil, nil, err
	}
	return client, link, nil
}

// deliveries is how many there are now.
func (s *serviceBusService) deliveries() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.using
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

const needsRole = "give the dispatcher's identity the role Azure Service Bus Data Sender on it"

// linkFailure is a failure before anything was sent.
func linkFailure(err error) error {
	var response *azservicebus.Error
	is := func(code azservicebus.Code) bool { return errors.As(err, &response) && response.Code == code }
	said, _ := condition(err)
	switch {
	case is(azservicebus.CodeNotFound), said == amqp.ErrCondNotFound:
		return &refusal{word: reason.Refusing, code: string(amqp.ErrCondNotFound), noPlace: true, what: "responded " + string(amqp.ErrCondNotFound) + "; create it, or set queue or topic to one that exists"}
	case is(azservicebus.CodeUnauthorizedAccess):
		return &refusal{word: reason.AuthenticationFailed, code: string(amqp.ErrCondUnauthorizedAccess), unauthenticated: true, what: "responded " + string(amqp.ErrCondUnauthorizedAccess) + "; " + needsRole}
	case said != "":
		return &unsent{fmt.Errorf("the service responds %s", said)}
	default:
		return &unsent{errors.New(strings.TrimPrefix(err.Error(), "(connlost): "))}
	}
}

// wrapped finds the condition in the text of an error of the SDK, which hides the error that it wraps.
var wrapped = regexp.MustCompile(`^\([a-z]+\): \*Error\{Condition: ([^,]+), `)

// ended are the conditions with which a connection or a link ends, and which speak of none of its messages.
var ended = regexp.MustCompile(`^(amqp:(connection|session|link):.*|com\.microsoft:timeout)$`)

// condition is what the service responded, or "". endsLink says that the link or the connection may have ended with it.
func condition(err error) (said amqp.ErrCond, endsLink bool) {
	var hidden *azservicebus.Error
	var response *amqp.Error
	if errors.As(err, &hidden) {
		if found := wrapped.FindStringSubmatch(hidden.Error()); found != nil {
			said = amqp.ErrCond(found[1])
		}
		return said, true
	}
	if errors.As(err, &response) {
		said = response.Condition
	}
	return said, err != error(response) //nolint:errorlint // a response about the message alone is not wrapped
}

// serviceBusFailure says what the response to a message means to the sink. Only conditions are quoted.
func serviceBusFailure(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, azservicebus.ErrMessageTooLarge):
		return &refusal{word: reason.Refusing, code: string(amqp.ErrCondMessageSizeExceeded), tooLarge: true, what: "responded " + string(amqp.ErrCondMessageSizeExceeded)}
	}
	said, endsLink := condition(err)
	if said == "" || ended.MatchString(string(said)) {
		return err // the connection ended, with no response about the message
	}
	r := &refusal{word: reason.Refusing, code: string(said), endsLink: endsLink}
	remedy := "the service's documentation says what it means"
	switch said {
	case amqp.ErrCondUnauthorizedAccess:
		r.noPlace = true
		r.word, remedy = reason.AuthenticationFailed, needsRole
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
	}
	r.what = fmt.Sprintf("responded %s; %s", said, remedy)
	return r
}

// probe opens a link to the configured queue or topic. Without one, that the namespace responds about a
// link is enough: that there is none, or to an identity that may only send to its own queues, that it may not.
func (s *serviceBusService) probe(ctx context.Context) error {
	to := cmp.Or(s.entity, "outbox-probe")
	_, link, err := s.ready(ctx, to, 0)
	var response *refusal
	switch {
	case err == nil:
		link.using.Done()
	case s.entity == "" && errors.As(err, &response):
		return nil
	}
	return err
}

func (s *serviceBusService) close(ctx context.Context) error {
	s.mu.Lock()
	client := s.client
	s.client, s.senders = nil, map[string]*serviceBusLink{}
	s.mu.Unlock()
	defer s.closing.Wait()
	if client == nil {
		return nil
	}
	return closeClient(ctx, client)
}
