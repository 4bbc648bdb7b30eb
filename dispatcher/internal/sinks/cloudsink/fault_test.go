package cloudsink

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/grpc/codes"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
)

// What every service does alike: a missing destination, a message that is too large, and silence.
//
// CONTRACT: C-27, C-32, C-40, C-73
func TestCloudSinksReportServiceFaults(t *testing.T) {
	for name, test := range map[string]struct {
		open  func(*testing.T) place
		bytes int
	}{
		"SQS":    {func(t *testing.T) place { return newSQS(t, "") }, sqsBytes},
		"SNS":    {func(t *testing.T) place { return newSNS(t, "") }, snsBytes},
		"PubSub": {func(t *testing.T) place { p, _ := newPubSub(t, spec.Binary); return p }, pubsubBytes},
		// The stand-in's limit, which its link announces.
		"ServiceBus": {func(t *testing.T) place { return newServiceBusPlace(t, spec.Binary) }, 262144},
	} {
		t.Run(name, func(t *testing.T) {
			p := test.open(t)
			sinktest.Outcome(t, "too large", p.sink.Deliver(t.Context(), []*dispatcher.Event{sinktest.Sized(test.bytes)})[0], sinktest.Permanent, reason.Refusing, "the message is too large")
			large := p.sink.Deliver(t.Context(), []*dispatcher.Event{sinktest.NewEvent(), sinktest.Sized(test.bytes), sinktest.NewEvent()})
			if large[0] != nil || large[2] != nil {
				t.Errorf("events next to one that is too large: %v and %v", large[0], large[2])
			}
			sinktest.Outcome(t, "too large, of three", large[1], sinktest.Permanent, reason.Refusing, "the message is too large")

			inner := p.sink.place.Of
			for to, want := range map[string]struct {
				is   sinktest.Class
				text string
			}{p.missing: {sinktest.Fault, "; create "}, "no such name?": {sinktest.Failed, "has no destination"}, "": {sinktest.Failed, "has no destination"}} {
				p.sink.place.Of = func(*dispatcher.Event) (string, error) { return to, nil }
				sinktest.Outcome(t, "to "+to, sinktest.Send(t, p.sink), want.is, reason.Refusing, want.text)
			}
			only := p.sink.place.Only
			p.sink.place.Only = p.missing
			p.sink.place.Of = func(*dispatcher.Event) (string, error) { return p.missing, nil }
			sinktest.Outcome(t, "all to "+p.missing, sinktest.Send(t, p.sink), sinktest.Unavailable, reason.Refusing, "; create ")
			p.sink.place.Only = only
			p.sink.place.Of = func(*dispatcher.Event) (string, error) { return "", errors.New("no route; add one") }
			sinktest.Outcome(t, "no route", sinktest.Send(t, p.sink), sinktest.Failed, reason.Refusing, "has no destination: no route; add one")
			p.sink.place.Of = inner

			if err := sinktest.Send(t, p.sink); err != nil { // a connection, that is silent then
				t.Fatal(err)
			}
			p.sink.timeout = 300 * time.Millisecond
			p.hangUp()
			err := sinktest.Send(t, p.sink)
			sinktest.Outcome(t, "slow", err, sinktest.Failed, reason.ConnectionFailed, "gave no response within 300ms; raise timeout")
			if !strings.HasSuffix(err.Error(), ". It may have taken the event, so this counts as an attempt") {
				t.Errorf("slow: the event spends an attempt, and the error does not say so: %v", err)
			}
			var slow interface{ Timeout() bool }
			need.That(t, errors.As(err, &slow) && slow.Timeout(), "metrics count timeouts, and this is none: %v", err)
			sinktest.Outcome(t, "slow, Probe", p.sink.Probe(t.Context()), sinktest.Unavailable, reason.ConnectionFailed, "within 300ms")
			p.close()
		})
	}
}

// AWS counts an attribute's name, its type and its value.
func TestSizeCountsAttributesAsAWSDoes(t *testing.T) {
	m := message{body: []byte("ab"), contentType: "t", attributes: map[string]string{"ce_id": "7"}}
	if want := len("ab") + len("content-type"+"String"+"t") + len("ce_id"+"String"+"7"); m.size() != want {
		t.Errorf("the size is %d, want %d", m.size(), want)
	}
}

// awsResponse is a server that sends what no stand-in can be made to send.
func awsResponse(t *testing.T, status int, body string) *httptest.Server {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	return server
}

// CONTRACT: C-32, C-73
func TestAWSResponsesNameTheRemedy(t *testing.T) {
	for code, want := range map[string]struct {
		is         sinktest.Class
		word, text string
	}{
		"AccessDeniedException":        {sinktest.Unavailable, reason.AuthenticationFailed, "allow the dispatcher's role to send"},
		"ExpiredTokenException":        {sinktest.Unavailable, reason.AuthenticationFailed, "renew the credentials"},
		"InvalidClientTokenId":         {sinktest.Unavailable, reason.AuthenticationFailed, "check the credentials"},
		"UnrecognizedClientException":  {sinktest.Unavailable, reason.AuthenticationFailed, "check the credentials"},
		"SignatureDoesNotMatch":        {sinktest.Unavailable, reason.AuthenticationFailed, "check the credentials"},
		"QueueDoesNotExist":            {sinktest.Unavailable, reason.Refusing, "create it"},
		"NotFound":                     {sinktest.Unavailable, reason.Refusing, "create it"},
		"ThrottlingException":          {sinktest.Fault, reason.Refusing, "lower concurrency"},
		"OverLimit":                    {sinktest.Fault, reason.Refusing, "lower concurrency"},
		"ServiceUnavailable":           {sinktest.Fault, reason.Refusing, "the event is retried"},
		"SomethingNew":                 {sinktest.Failed, reason.Refusing, "AWS's documentation"},
		"Throttled":                    {sinktest.Fault, reason.Refusing, "lower concurrency"},
		"KmsThrottled":                 {sinktest.Fault, reason.Refusing, "lower concurrency"},
		"KMSThrottling":                {sinktest.Fault, reason.Refusing, "lower concurrency"},
		"KMS.ThrottlingException":      {sinktest.Fault, reason.Refusing, "lower concurrency"},
		"KmsAccessDenied":              {sinktest.Unavailable, reason.AuthenticationFailed, "kms:GenerateDataKey"},
		"KMSAccessDenied":              {sinktest.Unavailable, reason.AuthenticationFailed, "kms:GenerateDataKey"},
		"KMS.AccessDeniedException":    {sinktest.Unavailable, reason.AuthenticationFailed, "kms:GenerateDataKey"},
		"KmsDisabled":                  {sinktest.Unavailable, reason.Refusing, "enable the key"},
		"KMSDisabled":                  {sinktest.Unavailable, reason.Refusing, "enable the key"},
		"KMS.DisabledException":        {sinktest.Unavailable, reason.Refusing, "enable the key"},
		"KMS.InvalidStateException":    {sinktest.Unavailable, reason.Refusing, "enable the key"},
		"KMS.NotFoundException":        {sinktest.Unavailable, reason.Refusing, "enable the key"},
		"KMS.OptInRequired":            {sinktest.Unavailable, reason.Refusing, "enable the key"},
		"KMS.InvalidKeyUsageException": {sinktest.Unavailable, reason.Refusing, "enable the key"},
	} {
		said := sinktest.PayloadSecret + " echoed"
		queue := awsResponse(t, 400, fmt.Sprintf(`{"__type":"com.amazonaws.sqs#%s","message":%q}`, code, said))
		topic := awsResponse(t, 400, fmt.Sprintf(`<ErrorResponse><Error><Type>Sender</Type><Code>%s</Code><Message>%s</Message></Error></ErrorResponse>`, code, said))
		s, err := NewSQS(spec.SQSSink{QueueURL: queue.URL + "/" + account + "/orders"}, nil)
		sinktest.Outcome(t, "SQS "+code, sinktest.Send(t, opened(t, s, err)), want.is, want.word, want.text)
		n, err := NewSNS(spec.SNSSink{TopicARN: "arn:aws:sns:eu-west-1:" + account + ":orders", Endpoint: spec.CloudEndpoint(topic.URL)}, nil)
		sinktest.Outcome(t, "SNS "+code, sinktest.Send(t, opened(t, n, err)), want.is, want.word, want.text)
		// An identity that may only send may not read, and the service is there.
		if err := s.Probe(t.Context()); (err == nil) != (code == "AccessDeniedException") {
			t.Errorf("SQS %s: Probe returned %v", code, err)
		}
	}
	// The status says whose fault it is, where a gateway sends a page of its own, and where the code is not known.
	for body, want := range map[string][2]string{ // the words of SQS and of SNS
		"<html>" + sinktest.PayloadSecret + "</html>":                             {reason.ConnectionFailed, reason.Refusing},
		sinktest.PayloadSecret:                                                    {reason.ConnectionFailed, reason.Refusing},
		`{"__type":"SomethingNew"}`:                                               {reason.Refusing, reason.Refusing},
		"<ErrorResponse><Error><Code>SomethingNew</Code></Error></ErrorResponse>": {reason.ConnectionFailed, reason.Refusing},
	} {
		gateway := awsResponse(t, 503, body)
		s, err := NewSQS(spec.SQSSink{QueueURL: gateway.URL + "/" + account + "/orders"}, nil)
		sinktest.Outcome(t, "SQS 503 "+body, sinktest.Send(t, opened(t, s, err)), sinktest.Fault, want[0], "the service has trouble")
		n, err := NewSNS(spec.SNSSink{TopicARN: "arn:aws:sns:eu-west-1:" + account + ":orders", Endpoint: spec.CloudEndpoint(gateway.URL)}, nil)
		sinktest.Outcome(t, "SNS 503 "+body, sinktest.Send(t, opened(t, n, err)), sinktest.Fault, want[1], "the service has trouble")
	}
	broken := awsResponse(t, 200, sinktest.PayloadSecret)
	s, err := NewSQS(spec.SQSSink{QueueURL: broken.URL + "/" + account + "/orders"}, nil)
	sinktest.Outcome(t, "no JSON", sinktest.Send(t, opened(t, s, err)), sinktest.Failed, reason.ConnectionFailed, "gave no valid response, and the HTTP status 200; ")
	sinktest.Outcome(t, "no JSON, Probe", s.Probe(t.Context()), sinktest.Unavailable, reason.ConnectionFailed, "gave no valid response, and the HTTP status 200")
	broken = awsResponse(t, 200, "<a>&"+sinktest.PayloadSecret)
	s, err = NewSNS(spec.SNSSink{TopicARN: "arn:aws:sns:eu-west-1:" + account + ":orders", Endpoint: spec.CloudEndpoint(broken.URL)}, nil)
	sinktest.Outcome(t, "no XML, Probe", opened(t, s, err).Probe(t.Context()), sinktest.Unavailable, reason.ConnectionFailed, "gave no valid response")
}

// Each message of a request has its own response, and one without is a failure.
//
// CONTRACT: C-32
func TestEachAWSEntryHasItsOwnOutcome(t *testing.T) {
	server := awsResponse(t, 200, `{
		"Successful":[],
		"Failed":[{"Id":"0","Code":"InternalError","SenderFault":false,"Message":"`+sinktest.PayloadSecret+`"},{"Id":"1","Code":"InvalidMessageContents","SenderFault":true}]}`)
	s, err := NewSQS(spec.SQSSink{QueueURL: server.URL + "/" + account + "/orders"}, nil)
	all := opened(t, s, err).Deliver(t.Context(), sinktest.NewEvents(3))
	sinktest.Outcome(t, "0", all[0], sinktest.Fault, reason.Refusing, "responded InternalError; ")
	sinktest.Outcome(t, "1", all[1], sinktest.Failed, reason.Refusing, "responded InvalidMessageContents; ")
	sinktest.Outcome(t, "2", all[2], sinktest.Failed, reason.ConnectionFailed, "gave no valid response")
}

// CONTRACT: C-32, C-73
func TestMissingCredentialsAreUnavailable(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		t.Setenv(name, "")
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "/does/not/exist.json")
	for name, open := range map[string]func() (dispatcher.Sink, error){
		"SQS": func() (dispatcher.Sink, error) {
			return NewSQS(spec.SQSSink{QueueURL: "http://127.0.0.1:1/" + account + "/orders"}, nil)
		},
		"SNS": func() (dispatcher.Sink, error) {
			return NewSNS(spec.SNSSink{TopicARN: "arn:aws:sns:eu-west-1:" + account + ":orders", Endpoint: "http://127.0.0.1:1"}, nil)
		},
		"PubSub": func() (dispatcher.Sink, error) {
			return NewPubSub(spec.PubSubSink{Project: "shop-test"}, nil)
		},
		"ServiceBus": func() (dispatcher.Sink, error) {
			return newServiceBusSink(busServer.Get(t).Address, "orders", "", ""), nil
		},
	} {
		s, err := open()
		sink := opened(t, s, err)
		sinktest.Outcome(t, name, sinktest.Send(t, sink), sinktest.Unavailable, reason.AuthenticationFailed, "; give the pods an identity")
		sinktest.Outcome(t, name+", Probe", sink.Probe(t.Context()), sinktest.Unavailable, reason.AuthenticationFailed, "no credentials: ")
	}
}

// CONTRACT: C-32, C-73
func TestPubSubResponsesNameTheRemedy(t *testing.T) {
	for code, want := range map[codes.Code]struct {
		is         sinktest.Class
		word, text string
	}{
		codes.PermissionDenied:  {sinktest.Unavailable, reason.AuthenticationFailed, "roles/pubsub.publisher"},
		codes.Unauthenticated:   {sinktest.Unavailable, reason.AuthenticationFailed, "check the credentials"},
		codes.ResourceExhausted: {sinktest.Fault, reason.Refusing, "lower concurrency"},
		codes.InvalidArgument:   {sinktest.Failed, reason.Refusing, "the topic's schema, or a limit of Pub/Sub such as 100 attributes"},
		// It speaks of billing, of a key, of the region: of no message.
		codes.FailedPrecondition: {sinktest.Unavailable, reason.Refusing, "enable the project's billing"},
		codes.Internal:           {sinktest.Fault, reason.Refusing, "the event is retried"},
		codes.Unavailable:        {sinktest.Fault, reason.ConnectionFailed, "gave no valid response"},
	} {
		p, server := newPubSub(t, spec.Binary, pstest.WithErrorInjection("Publish", code, sinktest.PayloadSecret))
		for _, err := range p.sink.Deliver(t.Context(), sinktest.NewEvents(2)) {
			sinktest.Outcome(t, code.String(), err, want.is, want.word, want.text)
			need.That(t, !strings.Contains(err.Error(), "counts as an attempt"), "%s: its attempt is given back, or nothing was taken: %v", code, err)
		}
		need.Want(t, 0, "%s: %d messages were taken", len(server.Messages()), code)
	}
	silent, _ := newPubSub(t, spec.Binary, pstest.WithErrorInjection("GetTopic", codes.Unavailable, sinktest.PayloadSecret))
	sinktest.Outcome(t, "Unavailable, Probe", silent.sink.Probe(t.Context()), sinktest.Unavailable, reason.ConnectionFailed, "gave no valid response")
	denied, _ := newPubSub(t, spec.Binary, pstest.WithErrorInjection("GetTopic", codes.PermissionDenied, ""))
	if err := denied.sink.Probe(t.Context()); err != nil {
		t.Errorf("an identity that may only publish may not read, and the service is there: %v", err)
	}
}

// A request has the messages of one ordering key, and those of events without a key share theirs.
//
// CONTRACT: C-50, C-71
func TestPubSubRequestsHaveOneKey(t *testing.T) {
	var published requests
	p, server := newPubSub(t, spec.Binary, pstest.ServerReactorOption{FuncName: "Publish", Reactor: &published})
	var batch []*dispatcher.Event
	for i := range 90 {
		e := sinktest.NewEvent()
		if key := strconv.Itoa(i % 30); i%3 == 1 {
			e.PartitionKey = key
		} else if i%3 == 2 {
			e.AggregateID = key
		}
		batch = append(batch, e)
	}
	for _, err := range p.sink.Deliver(t.Context(), batch) {
		if err != nil {
			t.Error(err)
		}
	}
	if n := published.Load(); n != 21 || len(server.Messages()) != 90 {
		t.Errorf("%d requests with %d messages, want one for each of 20 keys, and one for the events without", n, len(server.Messages()))
	}
	p.arrived()
}

// requests counts them.
type requests struct{ atomic.Int64 }

func (r *requests) React(any) (handled bool, ret any, err error) {
	r.Add(1)
	return false, nil, nil
}

// sdkBody is as the SDK's: its WriteTo fails once it is closed, and net/http calls that once more after the last byte.
type sdkBody struct {
	*strings.Reader
	closed chan struct{}
	once   sync.Once
}

func (b *sdkBody) Close() error { b.once.Do(func() { close(b.closed) }); return nil }

func (b *sdkBody) WriteTo(w io.Writer) (int64, error) {
	if b.Len() > 0 {
		return b.Reader.WriteTo(w)
	}
	<-b.closed
	return 0, io.EOF
}

// A request's body that is closed at the response's head, as the SDK does, leaves the response whole.
func TestResponseOutlivesTheBody(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, strings.Repeat("taken ", 100_000))
	}))
	defer server.Close()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, nil)
	need.OK(t, err)
	body := &sdkBody{Reader: strings.NewReader("event"), closed: make(chan struct{})}
	request.Body, request.ContentLength = body, 5
	response, err := traced{transport(time.Minute)}.RoundTrip(request)
	need.OK(t, err)
	defer response.Body.Close()
	_ = body.Close()
	if _, err := io.ReadAll(response.Body); err != nil {
		t.Errorf("the response broke off: %v", err)
	}
}

// gate is a way to a server that a test can close, and open again at the same address, or keep from
// passing anything on.
type gate struct {
	t       *testing.T
	address string
	backend string
	waiting chan struct{} // gets a value for what arrives while it hangs

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]chan struct{} // closed when the client has ended
	hang     bool
}

func newGate(t *testing.T, backend string) *gate {
	g := &gate{t: t, backend: backend, waiting: make(chan struct{}, 1), address: "127.0.0.1:0"}
	g.open()
	t.Cleanup(g.close)
	return g
}

func (g *gate) open() {
	listener, err := net.Listen("tcp", g.address)
	if err != nil {
		g.t.Error(err)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.address, g.listener, g.conns = listener.Addr().String(), listener, map[net.Conn]chan struct{}{}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			g.join(client)
		}
	}()
}

func (g *gate) join(client net.Conn) {
	server, err := net.Dial("tcp", g.backend)
	if err != nil {
		client.Close()
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	ended := make(chan struct{})
	g.conns[client], g.conns[server] = ended, nil
	go func() {
		defer close(ended)
		_, _ = io.Copy(server, reader{g, client})
		server.Close()
		_, _ = io.Copy(io.Discard, client) // the server may end first: the client has ended when it says so
		client.Close()
	}()
	go func() {
		_, _ = io.Copy(client, server)
		_ = client.(*net.TCPConn).CloseWrite()
	}()
}

// reader passes nothing on while the gate hangs.
type reader struct {
	g    *gate
	conn net.Conn
}

func (r reader) Read(p []byte) (int, error) {
	n, err := r.conn.Read(p)
	r.g.mu.Lock()
	hang := r.g.hang
	r.g.mu.Unlock()
	if !hang {
		return n, err
	}
	select {
	case r.g.waiting <- struct{}{}:
	default:
	}
	_, _ = io.Copy(io.Discard, r.conn)
	return 0, errors.New("swallowed")
}

// close breaks all connections and takes no more.
func (g *gate) close() {
	g.mu.Lock()
	g.listener.Close()
	g.mu.Unlock()
	g.cut()
}

// cut breaks all connections.
func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.conns {
		c.Close()
	}
}

// end ends the connections as a server does after its timeout, and waits until the clients have ended them too.
func (g *gate) end() {
	g.mu.Lock()
	conns := maps.Clone(g.conns)
	g.mu.Unlock()
	for conn, ended := range conns {
		if ended != nil {
			_ = conn.(*net.TCPConn).CloseWrite()
			<-ended
		}
	}
}

func (g *gate) hangUp() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hang = true
	return g.waiting
}
