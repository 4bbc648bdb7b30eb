package kafkasink

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/base"
)

// sessionHolder holds the session that deliveries use.
type sessionHolder struct {
	mu      sync.Mutex
	current *session
	closing sync.WaitGroup
}

// session returns the current session, or opens one.
func (l *sessionHolder) session(open func() (*session, error)) (_ *session, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current == nil {
		if l.current, err = open(); err != nil {
			return nil, err
		}
	}
	return l.current, nil
}

// retire ends a session: from now on it sends no record, and the next delivery gets another one. An
// idempotent producer cannot take back a single record that may have been sent: its sequence numbers
// would have a gap. So all of the session's records end with it.
func (l *sessionHolder) retire(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current == s {
		l.current = nil
	}
	if !s.retired.Swap(true) {
		l.closing.Go(func() {
			s.client.Close()
			close(s.ended)
		})
	}
}

func (l *sessionHolder) close() {
	l.mu.Lock()
	s := l.current
	l.mu.Unlock()
	if s != nil {
		l.retire(s)
	}
	l.closing.Wait()
}

// session is one client and its connections: one idempotent producer.
type session struct {
	client *kgo.Client
	// sent counts the produce requests whose sending began.
	sent atomic.Int64
	// retired closes the way to the brokers for produce requests.
	retired atomic.Bool
	// ended is closed when the client is: kgo gives no result for a record that comes after that.
	ended chan struct{}
	// open counts connections.
	open atomic.Int64
	// trouble is the last failure to connect; nil since a connection was made.
	trouble atomic.Pointer[error]

	leading  sync.Mutex
	leaders  map[place]*leadership // of the places that took records
	reviewed time.Time             // of the last review
}

var _ kgo.HookBrokerConnect = (*session)(nil)

// OnBrokerConnect is kgo's word of a connection that was made, with login, or not.
func (s *session) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	switch {
	case err == nil:
		s.trouble.Store(nil)
	case s.retired.Load(): // the end of a session cuts its connections short
	case errors.Is(err, context.Canceled) && s.trouble.Load() != nil: // what failed before it says more
	default:
		s.trouble.Store(&err)
	}
}

func (s *sink) newSession() (*session, error) {
	ses := &session{ended: make(chan struct{}), leaders: map[place]*leadership{}}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		raw, err := s.dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		ses.open.Add(1)
		return &conn{Conn: raw, session: ses}, nil
	}
	var err error
	ses.client, err = kgo.NewClient(append([]kgo.Opt{
		kgo.Dialer(dial), kgo.WithHooks(ses), kgo.RecordPartitioner(partitioner{kgo.StickyKeyPartitioner(nil), ses}),
	}, s.options...)...)
	return ses, err
}

// ready returns at once while there is a connection. Otherwise it makes one: when that fails, the
// caller knows that nothing was sent, without having produced anything.
func (s *session) ready(ctx context.Context, timeout time.Duration) error {
	if s.open.Load() > 0 {
		return nil
	}
	return s.ping(ctx, timeout)
}

// ping requests from any broker the list of them.
func (s *session) ping(ctx context.Context, timeout time.Duration) error {
	return bounded(ctx, timeout, s.client.Ping)
}

// bounded calls kgo, and does not wait for its response longer than timeout.
func bounded(ctx context.Context, timeout time.Duration, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel() // here: the end of the call must not look like that of its time
	done := make(chan error, 1)
	go func() { done <- call(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done(): // kgo does not look at it while it logs in
		return ctx.Err()
	}
}

// conn notifies the session of what leaves on it.
type conn struct {
	net.Conn
	session *session
	closed  atomic.Bool
}

// Write sends one request: kgo writes each with one call.
func (c *conn) Write(request []byte) (int, error) {
	if isProduce(request) {
		// Counted before it is checked whether the session is retired. Who retires the session and
		// then finds the count unchanged knows that nothing was sent, nor will be.
		c.session.sent.Add(1)
		if c.session.retired.Load() {
			return 0, net.ErrClosed
		}
	}
	return c.Conn.Write(request)
}

// isProduce reads the API key, which is 0, behind the length of a request. What is not a request and
// looks like one makes the sink more careful, no more.
func isProduce(request []byte) bool {
	return len(request) >= 6 && binary.BigEndian.Uint16(request[4:]) == 0
}

// Close may be called several times.
func (c *conn) Close() error {
	if !c.closed.Swap(true) {
		c.session.open.Add(-1)
	}
	return c.Conn.Close()
}

// produce sends the records, which are not none, and waits for their responses until ctx ends.
func (s *session) produce(ctx context.Context, records []*kgo.Record) []error {
	results := base.NewResults(len(records))
	for i, r := range records {
		s.hand(r, true, func(err error) { results.Set(i, err) })
	}
	look := time.NewTicker(leaderWait)
	defer look.Stop()
	for {
		select {
		case <-results.Done:
			return results.Now(nil)
		case <-s.ended:
			return results.Now(kgo.ErrClientClosed)
		case <-ctx.Done():
			return results.Now(base.ErrPending)
		case <-look.C:
			s.review()
		}
	}
}

// The bits of a topic's authorized operations: Kafka's codes of its ACLs' operations.
const (
	mayWrite    = 1 << 4
	mayDescribe = 1 << 8
)

// probeTopic checks whether the topic is there, and whether the user may write it. Brokers before Kafka 2.3
// do not say the latter.
func (s *sink) probeTopic(ctx context.Context, ses *session) error {
	req := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = kmsg.StringPtr(s.topic.Only)
	req.Topics, req.AllowAutoTopicCreation, req.IncludeTopicAuthorizedOperations = append(req.Topics, topic), false, true
	result := make(chan *kmsg.MetadataResponse, 1) // which comes too late, if ctx ends
	err := bounded(ctx, min(s.timeout, connectTimeout), func(ctx context.Context) error {
		a, err := req.RequestWith(ctx, ses.client)
		result <- a
		return err
	})
	if err != nil {
		return s.Unreachable(ctx, err)
	}
	for _, t := range (<-result).Topics {
		err := kerr.ErrorForCode(t.ErrorCode)
		if rights := t.AuthorizedOperations; err == nil && rights&mayDescribe != 0 && rights&mayWrite == 0 {
			err = kerr.TopicAuthorizationFailed
		}
		var said *kerr.Error
		if errors.As(err, &said) {
			return dispatcher.Unavailable(s.refused(&kgo.Record{Topic: s.topic.Only}, said))
		}
	}
	return nil
}

// Limit is the sink's maxMessageBytes or, when every event goes to one topic whose settings the user may
// read, that topic's max.message.bytes if it is less.
func (s *sink) Limit(ctx context.Context) (bytes int, setting string) {
	bytes, setting = s.maxBytes, "maxMessageBytes"
	if s.topic.Only == "" {
		return bytes, setting
	}
	ses, err := s.newSession()
	if err != nil {
		return bytes, setting
	}
	defer s.shared.retire(ses)
	const name = "max.message.bytes"
	req := kmsg.NewPtrDescribeConfigsRequest()
	topic := kmsg.NewDescribeConfigsRequestResource()
	topic.ResourceType, topic.ResourceName, topic.ConfigNames = kmsg.ConfigResourceTypeTopic, s.topic.Only, []string{name}
	req.Resources = append(req.Resources, topic)
	result := make(chan *kmsg.DescribeConfigsResponse, 1)
	err = bounded(ctx, min(s.timeout, connectTimeout), func(ctx context.Context) error {
		a, err := req.RequestWith(ctx, ses.client)
		result <- a
		return err
	})
	if err != nil {
		return bytes, setting
	}
	for _, resource := range (<-result).Resources {
		for _, c := range resource.Configs {
			if c.Name != name || c.Value == nil {
				continue
			}
			if n, err := strconv.Atoi(*c.Value); err == nil && n < bytes {
				bytes, setting = n, name+" of topic "+s.topic.Only
			}
		}
	}
	return bytes, setting
}
