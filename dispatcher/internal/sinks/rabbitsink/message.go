package rabbitsink

import (
	"cmp"
	"context"
	"fmt"

	"github.com/cloudevents/sdk-go/v2/event"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudevent"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

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
