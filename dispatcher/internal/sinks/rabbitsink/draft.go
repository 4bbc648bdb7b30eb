package rabbitsink

import (
	"context"
	"fmt"

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
	exchange := "the default exchange"
	if s.cfg.Exchange != "" {
		exchange = "exchange " + s.cfg.Exchange
	}
	m := draft.Message{
		To: fmt.Sprintf("%s of vhost %s, routing key %s", exchange, s.cfg.VHost, made.key), At: s.addresses, Body: made.Body,
		Headers: map[string]string{"content_type": made.ContentType, "message_id": made.MessageId, "type": made.Type},
	}
	for name, value := range made.Headers {
		m.Headers["header "+name] = fmt.Sprint(value)
	}
	return m, nil
}
