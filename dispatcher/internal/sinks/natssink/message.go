package natssink

import (
	"context"
	"fmt"
	"strings"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudevent"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

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
