package rabbitsink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cloudevents/sdk-go/v2/event"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudevent"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// publisher is a channel of the current session, for one delivery at a time.
type publisher struct {
	session *session
	channel *amqp.Channel // nil: none
	returns chan amqp.Return
	closed  chan *amqp.Error
}

// ready opens a channel, unless there is one. When that fails, nothing was sent.
func (p *publisher) ready(ctx context.Context, s *sink) error {
	ses, err := s.session(ctx)
	if err != nil {
		return err
	}
	if p.session == ses && p.channel != nil && !p.channel.IsClosed() {
		return nil
	}
	p.session = ses
	p.channel, err = s.openChannel(ctx, ses)
	if err != nil {
		p.channel = nil
		return err
	}
	// As large as what can come, for the library does not wait for a reader.
	p.returns = p.channel.NotifyReturn(make(chan amqp.Return, batchSize))
	p.closed = p.channel.NotifyClose(make(chan *amqp.Error, 1))
	return nil
}

// openChannel opens a channel that confirms.
func (s *sink) openChannel(ctx context.Context, ses *session) (channel *amqp.Channel, err error) {
	err = s.call(ctx, ses, func() error {
		if channel, err = ses.Channel(); err != nil {
			return err
		}
		return channel.Confirm(false)
	})
	return channel, err
}

// call bounds a call of the library, which waits for the broker however long.
func (s *sink) call(ctx context.Context, ses *session, f func() error) error {
	limited, cancel := context.WithTimeout(ctx, min(s.timeout, connectTimeout))
	defer cancel()
	abort := context.AfterFunc(limited, ses.abort)
	if err := f(); err != nil {
		return ses.wire.explain(limited, err)
	}
	if !abort() {
		return limited.Err()
	}
	return nil
}

// checkPlace checks the exchange, or the queue that every event goes to by the default exchange,
// without making it.
func (s *sink) checkPlace(ctx context.Context, ses *session) error {
	return s.call(ctx, ses, func() error {
		channel, err := ses.Channel()
		switch {
		case err != nil:
		case s.cfg.Exchange != amqp.DefaultExchange:
			err = channel.ExchangeDeclarePassive(s.cfg.Exchange, amqp.ExchangeDirect, true, false, false, false, nil)
		case s.key.Only != "":
			_, err = channel.QueueDeclarePassive(s.key.Only, true, false, false, false, nil)
		}
		return err
	})
}

// attempt is a message on its way.
type attempt struct {
	*message
	confirmation *amqp.DeferredConfirmation
	sent         bool // at least in part
	responded    bool
	err          error // of the response
}

// send publishes the messages on the publisher and returns a result for each.
func (s *sink) send(ctx context.Context, p *publisher, messages []*message) []error {
	if ctx.Err() != nil {
		return slices.Repeat([]error{s.Interrupted(ctx)}, len(messages))
	}
	if err := p.ready(ctx, s); err != nil {
		return slices.Repeat([]error{s.Unreachable(ctx, err)}, len(messages))
	}
	if ses := p.session; len(messages) > 1 && !ses.proven.Load() {
		first, rest := s.exchange(ctx, p, messages[:1]), messages[1:]
		if _, own := dispatcher.PermanentReason(first[0]); !own && !ses.proven.Load() {
			return append(first, slices.Repeat([]error{s.heldBack(ctx, ses)}, len(rest))...)
		}
		if dispatcher.IsUnavailable(first[0]) { // what keeps it out keeps out all
			return append(first, slices.Repeat([]error{first[0]}, len(rest))...)
		}
		return append(first, s.send(ctx, p, rest)...)
	}
	return s.exchange(ctx, p, messages)
}

// exchange is messages one way, and confirmations the other.
func (s *sink) exchange(ctx context.Context, p *publisher, messages []*message) []error {
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	p.session.using.Add(1)
	defer p.session.done()
	heard := p.session.wire.reads.Load()
	attempts := s.write(limited, p, messages)
	s.await(limited, p, attempts)
	end := s.end(limited, p, attempts, heard)
	errs := make([]error, len(attempts))
	for i := range attempts {
		errs[i] = s.outcome(ctx, end, &attempts[i])
	}
	return errs
}

// write publishes the messages, as long as they can be. A write that waits for the broker when ctx
// ends is torn out of the socket, and the connection with it.
func (s *sink) write(ctx context.Context, p *publisher, messages []*message) []attempt {
	attempts := make([]attempt, len(messages))
	for i, m := range messages {
		attempts[i].message = m
	}
	defer context.AfterFunc(ctx, p.session.abort)()
	for i := range attempts {
		a := &attempts[i]
		if err := a.fits(p.session.Config.FrameSize); err != nil {
			a.responded, a.err = true, err
			continue
		}
		if ctx.Err() != nil || p.session.reason.Load() != nil {
			break
		}
		var err error
		a.confirmation, err = p.channel.PublishWithDeferredConfirm(s.cfg.Exchange, a.key, true, false, a.Publishing)
		// A message that was not written in whole is none. But who knows of a write that failed?
		a.sent = !errors.Is(err, amqp.ErrClosed)
		if err != nil {
			if a.sent {
				p.session.abort() // the library may not have noticed yet
			}
			break
		}
	}
	return attempts
}

// await waits for the responses. A message that no queue took is returned before it is confirmed.
func (s *sink) await(ctx context.Context, p *publisher, attempts []attempt) {
	for i := range attempts {
		a := &attempts[i]
		if a.confirmation == nil {
			continue
		}
		select {
		case <-a.confirmation.Done():
		case <-ctx.Done():
		}
		select {
		case <-a.confirmation.Done():
			// The library says no for all that wait when the channel closes.
			a.responded = a.confirmation.Acked() || !p.channel.IsClosed()
			if a.responded && !a.confirmation.Acked() {
				a.err = s.notTaken(a.message)
			}
		default:
		}
		if a.responded {
			p.session.proven.Store(true)
		}
	}
	returned := map[string]bool{}
	for len(p.returns) > 0 {
		returned[(<-p.returns).MessageId] = true
	}
	for i := range attempts {
		if a := &attempts[i]; a.responded && returned[a.MessageId] {
			a.err = s.unroutable(a.message)
		}
	}
}

// end is why messages have no response.
type end struct {
	// refusal is the broker's reason to close the channel; nil: it did not.
	refusal *amqp.Error
	// lost says that the connection is gone; lostBy why, if it is known.
	lost   bool
	lostBy error
	// blocked is the broker's reason to take no messages; nil: it does.
	blocked *string
}

// end finds out why messages have no response, and gives up what is of no more use: the channel that
// may yet confirm them, and a connection on which nothing was heard.
func (s *sink) end(ctx context.Context, p *publisher, attempts []attempt, heard int64) (e end) {
	open := false
	for i := range attempts {
		open = open || !attempts[i].responded
	}
	if !open {
		return e
	}
	ses := p.session
	e.blocked = ses.reason.Load()
	if p.channel.IsClosed() {
		select {
		case e.refusal = <-p.closed:
		case <-ctx.Done():
		}
	}
	if e.refusal != nil && !ofChannel(e.refusal) {
		e.refusal, e.lost, e.lostBy = nil, true, e.refusal
	}
	switch {
	case e.refusal != nil:
		ses.proven.Store(true)
		if ofUser(e.refusal) { // auth's files may name another one by now
			ses.retired.Store(true)
		}
	case ses.ended.Load() || ses.IsClosed():
		e.lost = true
	case ctx.Err() == nil: // blocked before all were sent
	case e.blocked == nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && ses.wire.reads.Load() == heard:
		ses.abort()
	default:
		go func(c *amqp.Channel) { _ = c.Close() }(p.channel) // it may wait as long as the connection lives
	}
	if ctx.Err() != nil || e.refusal != nil || e.lost {
		p.channel = nil
	}
	return e
}

// shortString is the most bytes of a name in AMQP 0-9-1.
const shortString = 255

// message is an event as it is published.
type message struct {
	amqp.Publishing
	key string
}

// message returns the event as a message (CONTRACT C-70, C-71).
func (s *sink) message(e *dispatcher.Event) (*message, error) {
	key, err := s.key.Of(e)
	if err != nil {
		return nil, reason.Routed(fmt.Errorf("rabbitmq sink: %w", err))
	}
	if len(key) > shortString {
		return nil, reason.Routed(fmt.Errorf("rabbitmq sink: the routing key has %d bytes, and RabbitMQ takes %d; set routingKey to a shorter one", len(key), shortString))
	}
	ce := cloudevent.New(e)
	m := &message{key: key, Publishing: amqp.Publishing{MessageId: ce.ID(), Timestamp: e.CreatedAt, DeliveryMode: amqp.Persistent}}
	if len(ce.Type()) <= shortString {
		m.Type = ce.Type()
	}
	if s.cfg.ContentMode == spec.Structured {
		m.Body, err = cloudevent.JSON(ce)
		m.ContentType, m.Headers = event.ApplicationCloudEventsJSON, amqp.Table{}
	} else {
		m.Body, m.ContentType, m.Headers = e.Payload, ce.DataContentType(), make(amqp.Table, 22+2*len(e.Headers))
		if !e.Message.Bare {
			err = m.addAttributes(ce, s.cfg.AttributePrefix)
		}
	}
	if err != nil {
		return nil, cloudevent.Unwritable("rabbitmq sink", e, err)
	}
	cloudevent.OtherHeaders("rabbitmq", e, func(name, value string) { m.Headers[name] = value })
	return m, nil
}

// fits is an error when the headers are too large: AMQP has them in one frame, with little else.
func (m *message) fits(frame int) error {
	size := 1024
	for name, value := range m.Headers {
		size += len(name) + len(value.(string)) + 6
	}
	if frame == 0 || size <= frame {
		return nil
	}
	return reason.Coded(reason.TooLarge, dispatcher.Permanent(dispatcher.ReasonPermanentFailure, fmt.Errorf(
		"rabbitmq sink: event %s has about %d bytes of headers, and the broker takes frames of %d; make them smaller, or raise its frame_max", m.MessageId, size, frame)))
}

// addAttributes adds an event's attributes as headers, in the binary mode of the RabbitMQ binding, or of the AMQP 1.0
// binding with its prefix.
func (m *message) addAttributes(ce event.Event, prefix string) error {
	var tooLong error
	err := cloudevent.Attributes(ce, func(name, value string) {
		header := prefix + name
		switch {
		case name == "datacontenttype": // a property of the message
		case len(header) > shortString:
			tooLong = fmt.Errorf("a header's name has %d bytes, and RabbitMQ takes %d; use contentMode Structured, or a shorter name", len(header), shortString)
		default:
			m.Headers[header] = value
		}
	})
	return cmp.Or(err, tooLong)
}

var _ draft.Sink = (*sink)(nil)

// Draft implements [draft.Sink].
func (s *sink) Draft(_ context.Context, e *dispatcher.Event) (draft.Message, error) {
	made, err := s.message(e)
	if err != nil {
		return draft.Message{}, err
	}
	exchange := "the default exchange"
	if s.cfg.Exchange != "" {
		exchange = "exchange " + s.cfg.Exchange
	}
	m := draft.Message{
		To: fmt.Sprintf("%s of vhost %s, routing key %s", exchange, s.cfg.VHost, made.key), At: s.At, Body: made.Body,
		Headers: map[string]string{"content_type": made.ContentType, "message_id": made.MessageId, "type": made.Type},
	}
	for name, value := range made.Headers {
		m.Headers["header "+name] = fmt.Sprint(value)
	}
	return m, nil
}
