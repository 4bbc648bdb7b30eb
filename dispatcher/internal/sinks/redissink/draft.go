package redissink

import (
	"context"
	"fmt"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
)

var _ draft.Sink = (*sink)(nil)

// Draft implements [draft.Sink].
func (s *sink) Draft(_ context.Context, e *dispatcher.Event) (draft.Message, error) {
	made, err := s.entry(e)
	if err != nil {
		return draft.Message{}, err
	}
	m := draft.Message{To: "stream " + made.stream, At: s.servers, Headers: map[string]string{}}
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
