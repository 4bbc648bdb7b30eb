// Package logsink writes events as lines of JSON, for trying an outbox out. Each line is the event
// in the JSON format of CloudEvents 1.0, with the attributes that package cloudevent documents,
// and without its data (CONTRACT C-73) unless payload is Include, which is Omit by default.
package logsink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/cloudevent"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/draft"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/reason"
)

// batchSize only bounds how many events wait for the same lock.
const batchSize = 100

// New returns a sink that writes to w, with one Write for each event.
func New(cfg spec.LogSink, w io.Writer) dispatcher.Sink {
	return &sink{payload: cfg.Payload == spec.LogPayloadInclude, w: w}
}

type sink struct {
	payload bool

	mu sync.Mutex
	w  io.Writer
}

// Deliver writes a line for each event.
func (s *sink) Deliver(ctx context.Context, batch []*dispatcher.Event) (errs []error) {
	defer reason.Classify("log", &errs)
	return dispatcher.InOrder(batch, func(_ int, e *dispatcher.Event) error {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("the delivery was interrupted: %w", err)
		}
		return s.deliver(e)
	})
}

// KeepsOrder implements [dispatcher.Ordered]: lines are written one by one.
func (*sink) KeepsOrder() bool { return true }

func (s *sink) deliver(e *dispatcher.Event) error {
	line, err := s.line(e)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.w.Write(line)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("cannot write to the log: %w; check what reads it, and the disk it is on", err)
	if n == 0 {
		return dispatcher.Unavailable(err)
	}
	return err
}

func (s *sink) line(e *dispatcher.Event) ([]byte, error) {
	ce := cloudevent.New(e)
	ce.DataEncoded = nil
	if s.payload {
		var data bytes.Buffer
		// The error of Compact quotes the payload, so it is not passed on.
		if json.Compact(&data, e.Payload) != nil {
			return nil, cloudevent.Unwritable("log sink", e, errors.New("the payload is not JSON"))
		}
		ce.DataEncoded = data.Bytes()
	}
	line, err := cloudevent.JSON(ce)
	if err != nil {
		return nil, cloudevent.Unwritable("log sink", e, err)
	}
	return append(line, '\n'), nil
}

// Probe succeeds: whether a line can be written is only known by writing one.
func (*sink) Probe(context.Context) error { return nil }

// BatchSize is 100.
func (*sink) BatchSize() int { return batchSize }

// Close does nothing: the writer belongs to the caller.
func (*sink) Close(context.Context) error { return nil }

var _ draft.Sink = (*sink)(nil)

// Draft implements [draft.Sink]: the message is the line.
func (s *sink) Draft(_ context.Context, e *dispatcher.Event) (draft.Message, error) {
	line, err := s.line(e)
	return draft.Message{To: "the log", Body: line}, err
}
