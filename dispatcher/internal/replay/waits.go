package replay

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/api/status"
)

// maxWaits is how many items that were put back are examined for what they wait for, and how many that wait.
const maxWaits = 1000

// waits returns what a replay waits for.
func (r *Replays) waits(ctx context.Context, tx pgx.Tx, p status.Replay) ([]status.Wait, error) {
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
	return pgx.CollectRows(rows, pgx.RowToStructByPos[status.Wait])
}
