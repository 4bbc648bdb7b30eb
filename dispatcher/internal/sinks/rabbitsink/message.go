package rabbitsink

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/cloudevents/sdk-go/v2/binding"
	names "github.com/cloudevents/sdk-go/v2/binding/spec"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudevent"
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
	key, err := s.routingKey(e)
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
		var body bytes.Buffer
		err = event.WriteJson(&ce, &body)
		m.ContentType, m.Body, m.Headers = event.ApplicationCloudEventsJSON, body.Bytes(), amqp.Table{}
	} else {
		m.Body, m.ContentType, m.Headers = e.Payload, ce.DataContentType(), make(amqp.Table, 22+2*len(e.Headers))
		if !e.Message.Bare {
			err = (*binding.EventMessage)(&ce).ReadBinary(context.Background(), &headers{m, s.cfg.AttributePrefix})
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

// headers takes an event's attributes in the binary mode of the RabbitMQ binding, or of the AMQP 1.0 binding
// with its prefix.
type headers struct {
	*message
	prefix string
}

var _ binding.BinaryWriter = (*headers)(nil)

func (h *headers) SetAttribute(a names.Attribute, value any) error {
	if a.Kind() == names.DataContentType { // a property of the message
		return nil
	}
	return h.SetExtension(a.Name(), value)
}

func (h *headers) SetExtension(name string, value any) error {
	text, err := types.Format(value)
	if err != nil {
		return err
	}
	if len(h.prefix+name) > shortString {
		return fmt.Errorf("a header's name has %d bytes, and RabbitMQ takes %d; use contentMode Structured, or a shorter name", len(h.prefix+name), shortString)
	}
	h.Headers[h.prefix+name] = text
	return nil
}

func (*headers) Start(context.Context) error { return nil }
func (*headers) SetData(io.Reader) error     { return nil }
func (*headers) End(context.Context) error   { return nil }
