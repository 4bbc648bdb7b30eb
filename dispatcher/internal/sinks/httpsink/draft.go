package httpsink

import (
	"context"
	"net/http"
	"strings"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudevent"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
)

var _ draft.Sink = (*sink)(nil)

// Draft implements [draft.Sink]. With contentMode Batch it is a batch of one. Signature and Authorization are
// not in it.
func (s *sink) Draft(_ context.Context, e *dispatcher.Event) (draft.Message, error) {
	to, err := s.to(e)
	if err != nil {
		return draft.Message{}, err
	}
	header, body, err := s.content([]*dispatcher.Event{e})
	if err != nil {
		return draft.Message{}, err
	}
	m := draft.Message{To: to.name, Query: to.url.RawQuery, Body: body, Headers: make(map[string]string, len(header))}
	for name, values := range header {
		m.Headers[name] = strings.Join(values, "\n")
	}
	return m, nil
}

// content is what a request says of the events: its headers and its body. It is the same each time.
func (s *sink) content(events []*dispatcher.Event) (http.Header, []byte, error) {
	header := make(http.Header, len(s.header)+28)
	for name, values := range s.header {
		header[name] = values
	}
	body, err := s.encode(header, events)
	if err != nil {
		if err = cloudevent.Unwritable("http sink", events[0], err); len(events) > 1 {
			err = refusedContent{err} // each is written by itself: one of them is to blame
		}
		return nil, nil, err
	}
	if len(events) == 1 {
		cloudevent.OtherHeaders("http", events[0], func(name, value string) { header.Set(name, cloudevent.HeaderText(value)) })
	}
	return header, body, nil
}
