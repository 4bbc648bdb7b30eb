// Package natssink publishes events to streams of NATS JetStream as CloudEvents 1.0, in the binary or
// structured mode of the CloudEvents NATS binding. Package cloudevent says which attributes they carry.
//
// dispatcher/sink/nats.md has the settings, guarantees, outcomes and how to secure it.
package natssink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/base"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudevent"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

const (
	// batchSize is what one Deliver takes: enough to keep a stream busy while the acks travel.
	batchSize = 500
	// connectTimeout bounds a connection with TLS and login, and a probe.
	connectTimeout = 10 * time.Second
	// A stream that was just made, or has just lost its leader, takes nothing for a moment: then the
	// message is published again, as NATS' own clients do.
	again      = 2
	againAfter = 250 * time.Millisecond
)

type sink struct {
	base.Server
	subject base.Place
	mode    spec.ContentMode
	stream  string
	timeout time.Duration
	// options returns how to connect, from the files as they are now.
	options func() (nats.Options, error)
	dial    dialer

	mu      sync.Mutex
	current *session
	running sync.WaitGroup // sessions
}

var _ dispatcher.Sink = (*sink)(nil)

// New returns a sink for cfg. route says a subject of an event, see [base.PlaceOf]. It never fails.
func New(cfg spec.NATSSink, route func(*dispatcher.Event) (string, error)) (dispatcher.Sink, error) {
	return build(cfg, route), nil
}

func build(cfg spec.NATSSink, route func(*dispatcher.Event) (string, error)) *sink {
	cfg.ApplyDefaults()
	return &sink{
		Server: base.Server{
			Peer: peer, Kind: "NATS", At: strings.Join(cfg.Servers, ", "), Doing: "publishing to",
			Limit: min(cfg.Timeout.D(), connectTimeout), Explain: explainLogin,
		},
		subject: base.PlaceOf(route, cfg.Subject),
		mode:    cfg.ContentMode, stream: cfg.Stream, timeout: cfg.Timeout.D(),
		options: func() (nats.Options, error) { return options(cfg) },
		dial:    dial,
	}
}

// BatchSize is 500.
func (*sink) BatchSize() int { return batchSize }

// Deliver publishes the whole batch at once, and returns a result for each message as its stream confirms it.
// When ctx ends, or the timeout, what is not confirmed by then is never sent any more.
func (s *sink) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	return base.Deliver("nats", batch, s.message, func(msgs []*nats.Msg) []error {
		limited, cancel := context.WithTimeout(ctx, s.timeout)
		defer cancel()
		errs := s.publish(ctx, limited, msgs)
		for range again {
			var left []*nats.Msg
			var of []int // the place of each of them in msgs
			for i, err := range errs {
				if errors.Is(err, errNoStream) {
					left, of = append(left, msgs[i]), append(of, i)
				}
			}
			if len(left) == 0 || !sleep(limited, againAfter) {
				break
			}
			for i, err := range s.publish(ctx, limited, left) {
				errs[of[i]] = err
			}
		}
		return errs
	})
}

// sleep reports whether ctx outlasts d.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// publish sends the messages in one session, and returns a result for each. limited is ctx with the timeout.
func (s *sink) publish(ctx, limited context.Context, msgs []*nats.Msg) []error {
	all := func(err error) []error { return slices.Repeat([]error{err}, len(msgs)) }
	if limited.Err() != nil {
		return all(s.Unreachable(ctx, limited.Err()))
	}
	ses := s.session()
	if err := ses.wait(limited); err != nil {
		return all(s.Unreachable(ctx, err))
	}
	errs := ses.publish(limited, msgs)
	for i, m := range msgs {
		errs[i] = s.outcome(ctx, limited, ses, m, errs[i])
	}
	return errs
}

// session returns the one that deliveries share, which may still be connecting, or have failed to just
// now.
func (s *sink) session() *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil || s.current.over() {
		s.current = s.open()
	}
	return s.current
}

// leave has the next delivery open another session. Those that run end in this one.
func (s *sink) leave(ses *session) {
	s.mu.Lock()
	if s.current == ses {
		s.current = nil
	}
	s.mu.Unlock()
	ses.leave()
}

// Probe logs in to a server on a connection of its own, and waits for a response. If every event goes to one
// subject, it queries which stream takes that.
func (s *sink) Probe(ctx context.Context) error {
	s.mu.Lock()
	ses := s.open()
	s.mu.Unlock()
	defer ses.retire()
	if err := ses.wait(ctx); err != nil {
		return s.Unreachable(ctx, err)
	}
	if s.subject.Only == "" {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, min(s.timeout, connectTimeout))
	defer cancel()
	return s.probeStream(ctx, limited, ses)
}

// Close ends the connections. Nothing is in flight then: Deliver waits for its responses.
func (s *sink) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.current != nil {
		s.current.retire()
	}
	s.mu.Unlock()
	closed := make(chan struct{})
	go func() {
		s.running.Wait()
		close(closed)
	}()
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("nats sink: closing the connection to %s was interrupted: %w", s.At, ctx.Err())
	}
}

// The headers other than those of the attributes.
const (
	contentType    = "content-type"
	dataType       = "ce-datacontenttype"
	messageID      = "Nats-Msg-Id"
	expectedStream = "Nats-Expected-Stream"
)

// message returns the event as a message (CONTRACT C-70). Its id is the event's, at each attempt: so the
// stream stores a retry once.
func (s *sink) message(e *dispatcher.Event) (*nats.Msg, error) {
	subject, err := s.subject.Of(e)
	if err != nil {
		return nil, reason.Routed(fmt.Errorf("nats sink: %w", err))
	}
	if !spec.ValidNATSSubject(subject) {
		return nil, reason.Routed(fmt.Errorf("nats sink: %q is not a subject that events can go to; set subject to one without spaces and wildcards, that does not start with $ or _INBOX", subject))
	}
	m := &nats.Msg{Subject: subject, Header: make(nats.Header, 22+len(e.Headers))}
	ce := cloudevent.New(e)
	if s.mode == spec.Structured {
		m.Data, err = cloudevent.JSON(ce)
		headers(m.Header).set(contentType, event.ApplicationCloudEventsJSON)
	} else {
		m.Data = e.Payload
	}
	if s.mode != spec.Structured && !e.Message.Bare {
		err = cloudevent.Attributes(ce, headers(m.Header).attribute)
	}
	if err != nil {
		return nil, cloudevent.Unwritable("nats sink", e, err)
	}
	cloudevent.OtherHeaders("nats", e, func(name, value string) { headers(m.Header).set(name, cloudevent.HeaderText(value)) })
	headers(m.Header).set(messageID, ce.ID())
	if s.stream != "" {
		headers(m.Header).set(expectedStream, s.stream)
	}
	return m, nil
}

// size is what the message takes of the server's max_payload.
func size(m *nats.Msg) int {
	n := len("NATS/1.0\r\n\r\n") + len(m.Data)
	for name, values := range m.Header {
		n += len(name) + len(values[0]) + len(": \r\n")
	}
	return n
}

// headers takes an event's attributes in the binary mode of the CloudEvents NATS binding.
type headers nats.Header

// set takes the name as it is: consumers in Go look for exactly that.
func (h headers) set(name, value string) { h[name] = []string{value} }

// attribute writes the type of the data twice: the binding says ce-datacontenttype, the CloudEvents SDKs
// read content-type.
func (h headers) attribute(name, value string) {
	if name == "datacontenttype" {
		h.set(contentType, value)
		h.set(dataType, value)
	} else {
		h.set("ce-"+name, cloudevent.PercentEncode(value))
	}
}

var _ draft.Sink = (*sink)(nil)

// Draft implements [draft.Sink].
func (s *sink) Draft(_ context.Context, e *dispatcher.Event) (draft.Message, error) {
	made, err := s.message(e)
	if err != nil {
		return draft.Message{}, err
	}
	m := draft.Message{To: "subject " + made.Subject, At: s.At, Body: made.Data, Headers: make(map[string]string, len(made.Header))}
	for name, values := range made.Header {
		m.Headers[name] = strings.Join(values, "\n")
	}
	return m, nil
}
