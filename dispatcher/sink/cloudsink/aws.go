package cloudsink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"

	"github.com/outbox-operator/outbox-operator/dispatcher/sink/reason"
)

// awsBatch is what one request of SQS or SNS takes.
const awsBatch = 10

// awsPrefix begins the names of message attributes; there is room for ten of them.
const awsPrefix = "ce_"

// awsAttributes go beside the body, for filter policies and for who looks into a queue.
var awsAttributes = []string{"id", "source", "type", "subject", "topic", "tenantid", "fencingtoken"}

// awsClient is made at its first use, because it looks into the environment and its files.
type awsClient[C any] struct {
	region string
	http   *http.Client
	make   func(aws.Config, aws.HTTPClient) C

	mu     sync.Mutex
	made   bool
	client C
}

func newAWSClient[C any](region string, timeout time.Duration, create func(aws.Config, aws.HTTPClient) C) *awsClient[C] {
	return &awsClient[C]{region: region, make: create, http: &http.Client{
		Transport:     traced{transport(timeout)},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
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

func (a *awsClient[C]) get(ctx context.Context) (client C, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.made {
		return a.client, nil
	}
	cfg, err := awsconfig.LoadDefaultConfig(ctx)
	if err != nil {
		return client, &unsent{&noCredentials{err}}
	}
	if a.region != "" {
		cfg.Region = a.region
	}
	if cfg.Region == "" {
		return client, &unsent{&noCredentials{errors.New("no region; set region, or AWS_REGION in the environment")}}
	}
	inner := cfg.Credentials
	cfg.Credentials = aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		if inner == nil {
			return aws.Credentials{}, &noCredentials{errors.New("the environment has none")}
		}
		c, err := inner.Retrieve(ctx)
		if err != nil {
			err = &noCredentials{err}
		}
		return c, err
	})
	cfg.Logger = logging.Nop{} // its lines are none of ours (CONTRACT C-73)
	// One sending for each attempt: the engine retries (CONTRACT C-27).
	cfg.Retryer = func() aws.Retryer { return aws.NopRetryer{} }
	a.client, a.made = a.make(cfg, a.http), true
	return a.client, nil
}

func (a *awsClient[C]) close(context.Context) error {
	a.http.CloseIdleConnections()
	return nil
}

// sending knows whether something of a request may have left this process.
type sending struct{ begun atomic.Bool }

type sendingKey struct{}

// watched returns a context whose request to the service, but none for credentials, is watched.
func watched(ctx context.Context) (context.Context, *sending) {
	sent := &sending{}
	return context.WithValue(ctx, sendingKey{}, sent), sent
}

// traced tells a request's sending of its connection.
type traced struct{ *http.Transport }

func (t traced) RoundTrip(r *http.Request) (*http.Response, error) {
	if sent, ok := r.Context().Value(sendingKey{}).(*sending); ok {
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			GotConn: func(httptrace.GotConnInfo) { sent.begun.Store(true) },
		}))
	}
	return t.Transport.RoundTrip(r)
}

// awsFailure says what a call's error means to the sink.
func awsFailure(sent *sending, err error) error {
	var credentials *noCredentials
	var answer smithy.APIError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &credentials):
		return &unsent{credentials}
	case errors.As(err, &answer):
		return awsRefusal(answer.ErrorCode(), true)
	case !sent.begun.Load():
		return &unsent{cause(err)}
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

// awsRefusal maps the code of an answer. The answer's message is not quoted: it may echo what was sent.
// whole is true for the answer to a request, and false for one about a message.
func awsRefusal(code string, whole bool) *refusal {
	code = strings.TrimPrefix(code, "AWS.SimpleQueueService.")
	r := &refusal{word: reason.Refusing}
	remedy := "AWS's documentation says what it means"
	switch code {
	case "AccessDenied", "AccessDeniedException", "AuthorizationError", "AuthorizationErrorException", "KMSAccessDenied", "KMS.AccessDeniedException":
		r.word, remedy = reason.AuthenticationFailed, "allow the dispatcher's role to send (sqs:SendMessage or sns:Publish, and the key's kms:GenerateDataKey) in its policy and the destination's"
	case "ExpiredToken", "ExpiredTokenException", "RequestExpired":
		r.word, remedy = reason.AuthenticationFailed, "renew the credentials in the environment, and check the dispatcher's clock"
	case "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "InvalidSignatureException",
		"IncompleteSignature", "MissingAuthenticationToken", "InvalidAccessKeyId", "InvalidSecurity", "OptInRequired":
		r.word, remedy = reason.AuthenticationFailed, "check the credentials in the environment, and the region"
	case "NonExistentQueue", "QueueDoesNotExist", "NotFound", "NotFoundException", "ResourceNotFoundException":
		remedy = "create it, or correct queueURL or topicARN, and the region"
	case "Throttling", "ThrottlingException", "RequestThrottled", "ThrottledException", "OverLimit", "KmsThrottled", "KMSThrottling":
		remedy = "lower concurrency, or ask for a higher quota"
	case "BatchRequestTooLong", "BatchRequestTooLongException", "MessageTooLong":
		r.perMessage, r.tooLarge = true, true
		remedy = "raise the destination's maximum message size"
	case "InvalidParameterValue", "InvalidParameter", "InvalidMessageContents", "InvalidMessageContentsException", "InvalidParameterValueException":
		r.perMessage = whole
		remedy = "the message may be larger than the destination takes, or hold characters that it does not take"
	case "InternalError", "InternalErrorException", "InternalFailure", "ServiceUnavailable":
		remedy = "the service has trouble, and the event is retried"
	}
	r.what = fmt.Sprintf("answered %s; %s", code, remedy)
	return r
}

// awsDenied reports whether a probe was answered by one who may only send: the service is there.
func awsDenied(err error) bool {
	var answer smithy.APIError
	if !errors.As(err, &answer) {
		return false
	}
	switch answer.ErrorCode() {
	case "AccessDenied", "AccessDeniedException", "AuthorizationError", "AuthorizationErrorException":
		return true
	}
	return false
}

// groupForbidden are the characters that a FIFO queue's or topic's groups do not take.
func groupForbidden(r rune) bool { return r <= ' ' || r > '~' }

// attribute names and values of AWS may not be empty.
func awsText(contentType string, m *message, add func(name, value string)) {
	add("content-type", contentType)
	for name, value := range m.attributes {
		add(name, value)
	}
}
