package logsink

import (
	"context"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
)

var _ draft.Sink = (*sink)(nil)

// Draft implements [draft.Sink]: the message is the line.
func (s *sink) Draft(_ context.Context, e *dispatcher.Event) (draft.Message, error) {
	line, err := s.line(e)
	return draft.Message{To: "the log", Body: line}, err
}
