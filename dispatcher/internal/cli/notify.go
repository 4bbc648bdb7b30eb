package cli

import (
	"context"
	"fmt"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/metrics"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/monitor"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/notify"
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

// notifyOptions are the file's settings for the notifier.
func notifyOptions(cfg spec.Config) notify.Options {
	return notify.Options{Schema: cfg.Database.Schema, Namespace: cfg.Namespace, Topics: cfg.Topics, Dispatcher: cfg.Name}
}

// newNotifier returns a function that notifies the address until its context ends, and adds the notifier to the status and
// the metrics. Without an address the function does nothing.
func (e *process) newNotifier(ctx context.Context, cfg spec.Config, sources *monitor.Sources, observer *metrics.Metrics) (notifyAddress func(context.Context), err error) {
	to, err := address(cfg)
	if err != nil || to == nil {
		return func(context.Context) {}, err
	}
	opts := notifyOptions(cfg)
	opts.Logger = e.log
	opts.Ready = e.usable
	n := notify.New(e.pool, to, opts)
	waiting := monitor.NewNotifications(ctx, n.Waiting, e.log)
	sources.Notifications = func() *status.Notifications {
		counts := n.Counts()
		out := &status.Notifications{Sent: counts.Sent, Failed: counts.Failed, GivenUp: counts.GivenUp, Message: n.Problem()}
		if w := waiting.Get(); w != nil {
			out.Waiting, out.Oldest = w.DeadLetters, w.Oldest
		}
		return out
	}
	observer.WatchNotifications(func() metrics.Notifications {
		counts, w := n.Counts(), waiting.Get()
		out := metrics.Notifications{Sent: counts.Sent, Failed: counts.Failed, GivenUp: counts.GivenUp, Known: w != nil}
		if w != nil {
			out.Waiting, out.OldestSeconds = w.DeadLetters, w.Seconds
		}
		return out
	})
	return func(ctx context.Context) {
		n.Run(ctx)
		_ = to.Close(context.WithoutCancel(ctx)) // only idle connections are left
	}, nil
}
