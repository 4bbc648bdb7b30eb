package cli

import (
	"context"
	"fmt"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/httpsink"
)

// address makes the sink of notifications; nil when the file has no notify.
func address(cfg spec.Config) (dispatcher.Sink, error) {
	if cfg.Notify == nil {
		return nil, nil
	}
	s, err := httpsink.New(cfg.Notify.Sink(), nil)
	if err != nil {
		return nil, fmt.Errorf("notify: %w", err)
	}
	return named{s}, nil
}

// named is a sink whose errors say that it is not the events'.
type named struct{ dispatcher.Sink }

// Deliver implements [dispatcher.Sink].
func (n named) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	errs := n.Sink.Deliver(ctx, batch)
	for i, err := range errs {
		errs[i] = notifyError(err)
	}
	return errs
}

// Probe implements [dispatcher.Sink].
func (n named) Probe(ctx context.Context) error { return notifyError(n.Sink.Probe(ctx)) }

func notifyError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("notify: %w", err)
}
