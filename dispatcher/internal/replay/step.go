package replay

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Step does the next batch of a replay, of limit items at most, in one transaction. It returns how many had
// their turn, also those that it skipped. 0 means that there is nothing to do now: all is done, or what waits must
// wait for the outcome of others (see [Replays.Observe]).
//
// Each row is put back once, whatever else runs. The dead letters are locked first: of two replays with the same
// dead letter the second finds it resolved. It fails with [ErrNotFound] for an unknown id, and when the database does.
func (r *Replays) Step(ctx context.Context, id uuid.UUID, limit int) (done int, err error) {
	err = r.transaction(ctx, fmt.Sprintf("step of replay %s", id), pgx.ReadWrite, func(tx pgx.Tx) error {
		done = 0
		o, err := r.lock(ctx, tx, id)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, lookups); err != nil {
			return err
		}
		limit, err := r.canaryLimit(ctx, tx, id, o, limit)
		if err != nil || limit <= 0 {
			return err
		}
		rows, err := tx.Query(ctx, r.sql.pick, id, limit, o.ordered)
		if err != nil {
			return err
		}
		deadLetters, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil || len(deadLetters) == 0 {
			return err
		}
		return tx.QueryRow(ctx, r.sql.resolve, id, deadLetters).Scan(&done)
	})
	return done, err
}

// canaryLimit is how many items may go now: those that the canary has left, and none while its outcomes are open.
func (r *Replays) canaryLimit(ctx context.Context, tx pgx.Tx, id uuid.UUID, o replay, limit int) (int, error) {
	if o.canary == 0 {
		return limit, nil
	}
	var moved, open int
	if err := tx.QueryRow(ctx, r.sql.canary, id, o.canary+1).Scan(&moved, &open); err != nil {
		return 0, err
	}
	switch {
	case moved < o.canary:
		return min(limit, o.canary-moved), nil
	case moved == o.canary && open > 0:
		return 0, nil
	}
	return limit, nil
}
