package cloudsink

import (
	"context"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
)

var _ draft.Sink = (*sink)(nil)

// Draft implements [draft.Sink].
func (s *sink) Draft(_ context.Context, e *dispatcher.Event) (draft.Message, error) {
	to, made, err := s.message(e)
	if err != nil {
		return draft.Message{}, err
	}
	m := draft.Message{To: s.name(to), Key: made.key, Body: made.body, Headers: made.attributes}
	if s.group != nil {
		m.Key = s.group(made)
	}
	if made.contentType != "" {
		m.Headers["content-type"] = made.contentType
	}
	return m, nil
}
