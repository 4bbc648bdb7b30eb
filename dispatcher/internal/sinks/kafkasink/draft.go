package kafkasink

import (
	"context"
	"fmt"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
)

var _ draft.Sink = (*sink)(nil)

// Draft implements [draft.Sink]. The registry is queried for the schema of an encoding.
func (s *sink) Draft(ctx context.Context, e *dispatcher.Event) (draft.Message, error) {
	r, err := s.record(ctx, e)
	if err != nil {
		return draft.Message{}, err
	}
	m := draft.Message{To: "topic " + r.Topic, At: s.brokers, Key: string(r.Key), Body: r.Value, Headers: make(map[string]string, len(r.Headers))}
	for _, h := range r.Headers {
		name := h.Key
		for n := 2; m.Headers[name] != ""; n++ { // a record may have two of a name
			name = fmt.Sprintf("%s %d", h.Key, n)
		}
		m.Headers[name] = string(h.Value)
	}
	return m, nil
}
