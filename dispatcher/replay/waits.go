package replay

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// What an operation waits for that is not of it.
const (
	// WaitsForDispatcher: no dispatcher has said for a minute that it runs and serves the event's topic.
	WaitsForDispatcher = "no_dispatcher"
	// WaitsForDead: an earlier event of the key is dead and not of the set, and the dispatcher has onDead Block.
	WaitsForDead = "earlier_dead"
	// WaitsForLive: an earlier event of the key is neither delivered nor dead, and not of the set.
	WaitsForLive = "earlier_live"
)

// maxWaits is how many items are looked at that were put back, and how many that wait, for what they wait for.
const maxWaits = 1000

// Wait is what items wait for that is not of the operation.
type Wait struct {
	// Reason is no_dispatcher, earlier_dead or earlier_live.
	Reason string `json:"reason"`
	// Count is how many wait for that, of the first 1000 that were put back, and of the first 1000 that wait.
	Count int64 `json:"count"`
	// Event is one of those that are waited for; with no_dispatcher, one that waits.
	Event string `json:"event"`
}

// String is the wait in words.
func (w Wait) String() string {
	switch w.Reason {
	case WaitsForDispatcher:
		return fmt.Sprintf("%d wait for a dispatcher that serves their topic, such as %s; start one", w.Count, w.Event)
	case WaitsForDead:
		return fmt.Sprintf("%d wait for an earlier event of their key that is dead, such as %s; replay or discard that", w.Count, w.Event)
	}
	return fmt.Sprintf("%d wait for an earlier event of their key that is not delivered yet, such as %s", w.Count, w.Event)
}

// waits says what an operation waits for.
func (r *Replays) waits(ctx context.Context, tx pgx.Tx, p Progress) ([]Wait, error) {
	if p.Waiting+p.Pending == 0 {
		return nil, nil
	}
	if _, err := tx.Exec(ctx, lookups); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, r.sql.waits, p.ID, maxWaits)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Wait])
}
