package cloudsink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/smithy-go"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/awsenv"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/base"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// awsTimeout bounds the search for credentials. With the default timeout of a request, who waits to send
// waits longer, and so hears what was wrong.
const awsTimeout = 5 * time.Second

// awsBatch is what one request of SQS or SNS takes.
const awsBatch = 10

// awsPrefix begins the names of message attributes; there is room for ten of them.
const awsPrefix = "ce_"

// awsAttributes stand next to the body, for filter policies and for who looks into a queue.
var awsAttributes = []string{"id", "source", "type", "subject", "topic", "tenantid", "fencingtoken"}

// awsService sends to the queues of SQS, or the topics of SNS, of one account by their names.
type awsService[C any] struct {
	// what is queue or topic.
	what string
	// base is a queue's URL, or a topic's ARN, up to its name; own is the name that is configured.
	base, own string
	// longest is the most characters of a name.
	longest int
	// publish sends the entries with one request to a queue's URL or a topic's ARN.
	publish func(ctx context.Context, client C, to string, entries []awsEntry) (outcomes, error)
	// find returns an error unless it is there.
	find func(ctx context.Context, client C, to string) error
	// make makes the client at its first use, because it looks into the environment and its files.
	make   func(aws.Config, aws.HTTPClient) C
	region string
	http   *http.Client

	mu     sync.Mutex
	made   bool
	client C
}

// awsEntry is a message of a request.
type awsEntry struct {
	id, body *string
	// attributes stand next to the body; none is empty.
	attributes map[string]string
	// group and once are the group and the deduplication id of what is FIFO, else nil.
	group, once *string
}

// split returns a URL or an ARN up to the name at its end, and that name.
func split(address string, separator byte) (base, name string) {
	at := strings.LastIndexByte(address, separator) + 1
	return address[:at], address[at:]
}

// sink returns the sink of s, whose requests take so many bytes.
func (s *awsService[C]) sink(class string, timeout time.Duration, bytes int, route func(*dispatcher.Event) (string, error)) *sink {
	s.http = &http.Client{
		Transport:     traced{transport(timeout)},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return &sink{
		service: s, limits: limits{awsBatch, bytes}, class: class, batchSize: awsBatch, timeout: timeout,
		encode: encoder(class, spec.Structured, awsPrefix, awsAttributes...), place: base.PlaceOf(route, s.own),
	}
}

func transport(timeout time.Duration) *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: timeout}).DialContext,
		TLSHandshakeTimeout: timeout,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 1000,
		IdleConnTimeout:     10 * time.Second,
	}
}

func (s *awsService[C]) get(ctx context.Context) (client C, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made {
		return s.client, nil
	}
	cfg, err := awsenv.Load(ctx, awsTimeout)
	if err != nil {
		return client, &unsent{&noCredentials{err}}
	}
	if s.region != "" {
		cfg.Region = s.region
	}
	if cfg.Region == "" {
		return client, &unsent{&noCredentials{errors.New("no region; set region, or AWS_REGION in the environment")}}
	}
	inner := cfg.Credentials
	cfg.Credentials = aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		c, err := inner.Retrieve(ctx)
		if err != nil {
			err = &noCredentials{err}
		}
		return c, err
	})
	// One sending for each attempt: the engine retries (CONTRACT C-27).
	cfg.Retryer = func() aws.Retryer { return aws.NopRetryer{} }
	s.client, s.made = s.make(cfg, s.http), true
	return s.client, nil
}

func (s *awsService[C]) close(context.Context) error {
	s.http.CloseIdleConnections()
	return nil
}

var awsName = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.fifo)?$`)

func (s *awsService[C]) check(to string) error {
	if len(to) > s.longest || !awsName.MatchString(to) {
		return fmt.Errorf("%q is not a name that a %s can have; use at most %d characters of A-Z, a-z, 0-9, dashes and underscores", to, s.what, s.longest)
	}
	return nil
}

func (s *awsService[C]) name(to string) string { return s.what + " " + s.base + cmp.Or(to, s.own) }

func (s *awsService[C]) send(ctx context.Context, to string, messages []*message) ([]error, error) {
	client, err := s.get(ctx)
	if err != nil {
		return nil, err
	}
	entries := make([]awsEntry, len(messages))
	for i, m := range messages {
		if m.contentType != "" {
			m.attributes["content-type"] = m.contentType
		}
		entries[i] = awsEntry{id: aws.String(strconv.Itoa(i)), body: aws.String(string(m.body)), attributes: m.attributes}
		if strings.HasSuffix(to, ".fifo") {
			entries[i].group, entries[i].once = aws.String(shortKey(m.key, 128, groupForbidden)), &m.id
		}
	}
	ctx, sent := watched(ctx)
	all, err := s.publish(ctx, client, s.base+to, entries)
	return all, awsFailure(sent, err)
}

// groupForbidden are the characters that a FIFO queue's or topic's groups do not take.
func groupForbidden(r rune) bool { return r <= ' ' || r > '~' }

// outcomes of a request's entries.
type outcomes []error

// errNoResponse stands until an entry has its response.
var errNoResponse = errors.New("no response about this message")

func newOutcomes(entries []awsEntry) outcomes {
	return slices.Repeat(outcomes{errNoResponse}, len(entries))
}

// set notes the response about the entry with an id, which is its place.
func (o outcomes) set(id *string, err error) {
	if i, bad := strconv.Atoi(aws.ToString(id)); bad == nil && i >= 0 && i < len(o) {
		o[i] = err
	}
}

func (s *awsService[C]) probe(ctx context.Context) error {
	client, err := s.get(ctx)
	if err != nil {
		return err
	}
	ctx, sent := watched(ctx)
	err = s.find(ctx, client, s.base+s.own)
	if awsDenied(err) {
		return nil
	}
	return sent.probed(awsFailure(sent, err))
}

// sending knows whether something of a request may have left this process.
type sending struct{ begun atomic.Bool }

type sendingKey struct{}

// watched returns a context whose request to the service, but none for credentials, is watched.
func watched(ctx context.Context) (context.Context, *sending) {
	sent := &sending{}
	return context.WithValue(ctx, sendingKey{}, sent), sent
}

// probed is what err means to a probe, which sends no event.
func (s *sending) probed(err error) error {
	var refused *refusal
	if err == nil || errors.As(err, &refused) || !s.begun.Load() {
		return err
	}
	return &unsent{noResponse(err)}
}

// traced notifies a request's sending of its connection.
type traced struct{ *http.Transport }

func (t traced) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil && r.Body != http.NoBody {
		own := *r
		own.Body = readCloser{r.Body}
		r = &own
	}
	if sent, ok := r.Context().Value(sendingKey{}).(*sending); ok {
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			GotConn: func(httptrace.GotConnInfo) { sent.begun.Store(true) },
		}))
	}
	return t.Transport.RoundTrip(r)
}

// readCloser hides WriteTo of the SDK's body. The SDK closes the body at the response's head. When net/http has not noticed
// the body's end by then, WriteTo fails, and net/http closes the connection before the rest of the response is read.
type readCloser struct{ io.ReadCloser }

// awsFailure says what a call's error means to the sink.
func awsFailure(sent *sending, err error) error {
	var credentials *noCredentials
	var response smithy.APIError
	var status interface{ HTTPStatusCode() int }
	trouble := errors.As(err, &status) && status.HTTPStatusCode() >= 500
	switch {
	case err == nil:
		return nil
	case errors.As(err, &credentials):
		return &unsent{credentials}
	case errors.As(err, &response):
		return awsRefusal(response.ErrorCode(), true, trouble || response.ErrorFault() == smithy.FaultServer)
	case !sent.begun.Load():
		return &unsent{cause(err)}
	case trouble: // the response is not the service's: a gateway's, perhaps
		return dispatcher.DestinationFault(err)
	default:
		return err
	}
}

// cause is the innermost error: the SDK's texts around it name its own steps.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op
	}
	for next := err; next != nil; next = errors.Unwrap(next) {
		err = next
	}
	return err
}

// awsRefusal maps the code of a response. The response's message is not quoted: it may echo what was sent.
// whole is true for the response to a request, and false for one about a message. trouble says that the response calls
// itself the service's own fault.
func awsRefusal(code string, whole, trouble bool) *refusal {
	code = strings.TrimPrefix(code, "AWS.SimpleQueueService.")
	r := &refusal{word: reason.Refusing, code: code, fault: trouble}
	remedy := "AWS's documentation says what it means"
	if trouble {
		remedy = "the service has trouble, and the event is retried"
	}
	switch plainKMS(code) {
	case "AccessDenied", "AccessDeniedException", "AuthorizationError", "AuthorizationErrorException", "KMSAccessDenied":
		r.noPlace = true
		r.word, remedy = reason.AuthenticationFailed, "allow the dispatcher's role to send (sqs:SendMessage or sns:Publish, and the key's kms:GenerateDataKey) in its policy and the destination's"
	case "ExpiredToken", "ExpiredTokenException", "RequestExpired":
		r.unauthenticated = true
		r.word, remedy = reason.AuthenticationFailed, "renew the credentials in the environment, and check the dispatcher's clock"
	case "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "InvalidSignatureException",
		"IncompleteSignature", "MissingAuthenticationToken", "InvalidAccessKeyId", "InvalidSecurity", "OptInRequired":
		r.unauthenticated = true
		r.word, remedy = reason.AuthenticationFailed, "check the credentials in the environment, and the region"
	case "NonExistentQueue", "QueueDoesNotExist", "NotFound", "NotFoundException", "ResourceNotFoundException":
		r.noPlace = true
		remedy = "create it, or correct queueURL or topicARN, and the region"
	case "KMSDisabled", "KMSInvalidState", "KMSNotFound", "KMSOptInRequired", "KMSInvalidKeyUsage":
		r.noPlace = true
		remedy = "enable the key of KMS that the destination is encrypted with, or set another"
	case "Throttling", "ThrottlingException", "RequestThrottled", "Throttled", "ThrottledException", "OverLimit", "KMSThrottled", "KMSThrottling":
		r.fault = true
		remedy = "lower concurrency, or request a higher quota"
	case "BatchRequestTooLong", "BatchRequestTooLongException", "MessageTooLong":
		r.perMessage, r.tooLarge = true, true
		remedy = "raise the destination's maximum message size"
	case "InvalidParameterValue", "InvalidParameter", "InvalidMessageContents", "InvalidMessageContentsException", "InvalidParameterValueException":
		r.perMessage = whole
		remedy = "the message may be larger than the destination takes, or hold characters that it does not take"
	case "InternalError", "InternalErrorException", "InternalFailure", "ServiceUnavailable":
		r.fault = true
		remedy = "the service has trouble, and the event is retried"
	}
	r.what = fmt.Sprintf("responded %s; %s", code, remedy)
	return r
}

// plainKMS is the code itself, or the one of several spellings of a code about a key: KMS.DisabledException and
// KmsDisabled are KMSDisabled.
func plainKMS(code string) string {
	if len(code) < 3 || !strings.EqualFold(code[:3], "KMS") {
		return code
	}
	return "KMS" + strings.TrimSuffix(strings.TrimPrefix(code[3:], "."), "Exception")
}

// awsDenied reports whether a probe was refused because the identity may only send: the service is there.
func awsDenied(err error) bool {
	var response smithy.APIError
	if !errors.As(err, &response) {
		return false
	}
	switch response.ErrorCode() {
	case "AccessDenied", "AccessDeniedException", "AuthorizationError", "AuthorizationErrorException":
		return true
	}
	return false
}
