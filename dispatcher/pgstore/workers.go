package pgstore

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// WorkerInfo is what the table outbox_workers has of a worker in addition to its id, its namespace and the times.
type WorkerInfo struct {
	// Dispatcher is the name of the dispatcher that the worker belongs to.
	Dispatcher string
	// Topics are those that it delivers. Empty means all.
	Topics []string
	// Version of the program.
	Version string
	// Ordered is true when events wait for earlier ones of their key: it claims with a KeyOrder.
	Ordered bool
	// Blocks is true when its keys wait behind a dead event: KeyOrder.BlockOnDead.
	Blocks bool
	// Paused is true while it claims nothing.
	Paused bool
	// Live is how long the worker is live after a heartbeat: then its part of the rate limits is free. Several times
	// as long as the wait between two. Defaults to 45s.
	Live time.Duration
	// RatePart is the part of the rate limits that it may still use, by the Peers of earlier heartbeats: 0 once the time of
	// that is over. No other worker gets it before the next heartbeat.
	RatePart float64
	// PausedTopics says why little or nothing of a topic is claimed, by the topic; an empty name is all of them. Nil for none.
	PausedTopics map[string]string
	// Delivered and Failed count how its deliveries ended over each of dispatcher.Windows.
	Delivered, Failed [len(dispatcher.Windows)]int64
}

// Heartbeat notes in the table outbox_workers that this worker runs: when it began, and that it was seen now,
// both on the database's clock. It also removes the rows of workers that were not seen for a day. Call it every
// few moments; without rate limits nothing in the delivery of events depends on it. The error is the database's.
func (s *Store) Heartbeat(ctx context.Context, w WorkerInfo) (seen Peers, err error) {
	paused, err := json.Marshal(w.PausedTopics)
	if err != nil || w.PausedTopics == nil {
		paused = []byte("{}") // texts have their JSON
	}
	args := []any{pgUUID(s.worker), w.Dispatcher, s.namespace, w.Topics, w.Version, w.Blocks,
		w.Delivered[0], w.Failed[0], w.Delivered[1], w.Failed[1], w.Paused, string(paused), cmp.Or(w.Live, 45*time.Second), w.Ordered, w.RatePart}
	err = s.run(ctx, "note that the worker runs", relaxed, s.sql["heartbeat"], args, func(rows pgx.Rows) (err error) {
		seen, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Peers])
		return err
	})
	return seen, err
}

// Peers are the live workers of one dispatcher.
type Peers struct {
	// Part is this worker's part of the dispatcher's rate limits, from 0 to 1, for as long as it is live. It is 1/n for
	// each of n live workers, but no more than the others leave: a new one has none until they were seen twice. The sum
	// of all is never above 1, whichever responses are lost (CONTRACT C-36).
	Part float64
	// Live is how many workers of the dispatcher are live and not paused, this one included.
	Live int
}

// Leave removes this worker's row, for a worker that stops. The error is the database's.
func (s *Store) Leave(ctx context.Context) error {
	return s.run(ctx, "remove the worker's row", relaxed, s.sql["leave"], []any{pgUUID(s.worker)}, func(rows pgx.Rows) error {
		rows.Close()
		return rows.Err()
	})
}

// Sharing names the other dispatchers that claim the worker's namespace too, with topics in common, in whatever
// cluster they run: five at most, by name. They are those with a heartbeat in the last minute
// that are not paused.
// The error is the database's.
func (s *Store) Sharing(ctx context.Context, w WorkerInfo) ([]string, error) {
	return collect(ctx, s, "look for dispatchers of the same topics", s.sql["sharing"], pgx.RowTo[string], s.namespace, w.Dispatcher, w.Topics)
}
