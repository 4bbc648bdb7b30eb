package monitor

import (
	"context"
	"log/slog"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/notify"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/retention"
)

const (
	// countEvery is the shortest time between two counts of the backlog. One costs a millisecond.
	countEvery = 2 * time.Second
	// oldestEvery is the shortest time between two queries for the oldest transaction: those that matter take minutes.
	oldestEvery = 30 * time.Second
	// shareEvery is the shortest time between two queries for other dispatchers of the same topics.
	shareEvery = 15 * time.Second
	// sizesEvery is the shortest time between two queries for the tables' size on disk.
	sizesEvery = time.Minute
)

// NewBacklog counts the rows that wait (CONTRACT C-96), and the keys that do so where dead events may block keys.
func NewBacklog(ctx context.Context, store dispatcher.Store, topics []string, blocks bool, log *slog.Logger) *Latest[dispatcher.Depth] {
	return newLatest(ctx, log.With("query", "backlog"), countEvery, func(ctx context.Context) (*dispatcher.Depth, error) {
		depth, err := store.Depth(ctx, topics)
		if !blocks {
			depth.BlockedKeys, depth.Blocked = dispatcher.Count{}, nil
		}
		return &depth, err
	})
}

// NewOldestTransaction looks for what holds vacuum back. The result has no Kind when nothing does.
func NewOldestTransaction(ctx context.Context, look func(context.Context) (*dispatcher.OldestTransaction, error), log *slog.Logger) *Latest[dispatcher.OldestTransaction] {
	return newLatest(ctx, log.With("query", "oldest transaction"), oldestEvery, func(ctx context.Context) (*dispatcher.OldestTransaction, error) {
		oldest, err := look(ctx)
		if oldest == nil {
			oldest = &dispatcher.OldestTransaction{}
		}
		return oldest, err
	})
}

// NewSharing looks for other dispatchers that deliver the same topics, and returns their names.
func NewSharing(ctx context.Context, query func(context.Context) ([]string, error), log *slog.Logger) *Latest[[]string] {
	return newLatest(ctx, log.With("query", "sharing"), shareEvery, func(ctx context.Context) (*[]string, error) {
		names, err := query(ctx)
		return &names, err
	})
}

// NewRetention reads the progress of the sweep that removes rows after their retention.
func NewRetention(ctx context.Context, query func(context.Context) (retention.State, error), log *slog.Logger) *Latest[retention.State] {
	return newLatest(ctx, log.With("query", "retention"), shareEvery, func(ctx context.Context) (*retention.State, error) {
		state, err := query(ctx)
		return &state, err
	})
}

// NewNotifications counts the dead letters of which the address of notify is not notified yet.
func NewNotifications(ctx context.Context, query func(context.Context) (notify.Waiting, error), log *slog.Logger) *Latest[notify.Waiting] {
	return newLatest(ctx, log.With("query", "notifications"), shareEvery, func(ctx context.Context) (*notify.Waiting, error) {
		waiting, err := query(ctx)
		return &waiting, err
	})
}

// NewSizes reads the tables' size on disk.
func NewSizes(ctx context.Context, query func(context.Context) (map[string]int64, error), log *slog.Logger) *Latest[map[string]int64] {
	return newLatest(ctx, log.With("query", "sizes"), sizesEvery, func(ctx context.Context) (*map[string]int64, error) {
		sizes, err := query(ctx)
		return &sizes, err
	})
}
