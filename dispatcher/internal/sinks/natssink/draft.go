package natssink

import (
	"context"
	"strings"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
)

var _ draft.Sink = (*sink)(nil)

// Draft implements [draft.Sink].
func (s *sink) Draft(_ context.Context, e *dispatcher.Event) (draft.Message, error) {
	made, err := s.message(e)
	if err != nil {
		return draft.Message{}, err
	}
	m := draft.Message{To: "subject " + made.Subject, At: s.servers, Body: made.Data, Headers: make(map[string]string, len(made.Header))}
	for name, values := range made.Header {
		m.Headers[name] = strings.Join(values, "\n")
	}
	return m, nil
}
