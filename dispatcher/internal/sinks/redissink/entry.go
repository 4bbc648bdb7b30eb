package redissink

import (
	"context"
	"errors"
	"fmt"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudevent"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// The fields that are not attributes.
const (
	fieldData  = "data"
	fieldEvent = "event"
)

// entry returns the event as an XADD (CONTRACT C-70).
func (s *sink) entry(e *dispatcher.Event) (*entry, error) {
	stream, err := s.stream.Of(e)
	if err == nil && stream == "" {
		err = errors.New("the event's stream has no name; set stream, or correct the route")
	}
	if err != nil {
		return nil, reason.Routed(fmt.Errorf("redis sink: %w", err))
	}
	f := append(make([]any, 0, 48+2*len(e.Headers)), "xadd", stream)
	if s.cfg.MaxLen > 0 {
		f = append(f, "maxlen", "~", s.cfg.MaxLen)
	}
	f = append(f, "*")
	ce := cloudevent.New(e)
	if s.cfg.ContentMode == spec.Structured {
		var body []byte
		body, err = cloudevent.JSON(ce)
		f = append(f, fieldEvent, body)
	} else {
		if !e.Message.Bare {
			err = cloudevent.Attributes(ce, func(name, value string) { f = append(f, name, value) })
		}
		f = append(f, fieldData, []byte(e.Payload))
	}
	for _, h := range e.Message.Headers {
		f = append(f, h.Name, h.Value)
	}
	if err != nil {
		return nil, cloudevent.Unwritable("redis sink", e, err)
	}
	return &entry{stream: stream, args: f}, nil
}

var _ draft.Sink = (*sink)(nil)

// Draft implements [draft.Sink].
func (s *sink) Draft(_ context.Context, e *dispatcher.Event) (draft.Message, error) {
	made, err := s.entry(e)
	if err != nil {
		return draft.Message{}, err
	}
	m := draft.Message{To: "stream " + made.stream, At: s.At, Headers: map[string]string{}}
	args := made.args
	for len(args) > 0 && args[0] != "*" { // what comes before is for the stream
		args = args[1:]
	}
	for i := 1; i+1 < len(args); i += 2 {
		switch value := args[i+1].(type) {
		case []byte:
			m.Body = value
		default:
			m.Headers[fmt.Sprint(args[i])] = fmt.Sprint(value)
		}
	}
	return m, nil
}
