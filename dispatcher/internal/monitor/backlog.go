package monitor

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

const (
	// countEvery is the time between two counts of the backlog. A count costs a millisecond.
	countEvery = 2 * time.Second
	// countTimeout bounds one.
	countTimeout = 10 * time.Second
)

// Backlog counts the rows that wait, in the background, and keeps the last count while the database
// is away (CONTRACT C-96).
type Backlog struct {
	store  dispatcher.Store
	topics []string
	log    *slog.Logger
	latest atomic.Pointer[dispatcher.Depth]
	failed bool
}

// NewBacklog returns a Backlog of the topics; none means all.
func NewBacklog(store dispatcher.Store, topics []string, log *slog.Logger) *Backlog {
	return &Backlog{store: store, topics: topics, log: log}
}

// Latest is the last count, nil before the first.
func (b *Backlog) Latest() *dispatcher.Depth { return b.latest.Load() }

// Run counts at once and then every few seconds, until ctx ends.
func (b *Backlog) Run(ctx context.Context) {
	tick := time.NewTicker(countEvery)
	defer tick.Stop()
	for {
		b.count(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (b *Backlog) count(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	depth, err := b.store.Depth(limited, b.topics)
	switch {
	case err == nil:
		b.latest.Store(&depth)
	case ctx.Err() != nil:
		return // the process stops
	case !b.failed:
		b.log.Warn("the backlog cannot be counted; keeping the last count", "error", err)
	}
	b.failed = err != nil
}
