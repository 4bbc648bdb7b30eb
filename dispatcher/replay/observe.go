package replay

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Observe looks for the outcomes of what was put back, and tells how far the operation is. In the same transaction
// it draws the consequences: the later items of a key whose event died again are skipped, and an operation of which
// too many died again is stopped.
func (r *Replays) Observe(ctx context.Context, id uuid.UUID) (p Progress, err error) {
	err = r.transaction(ctx, fmt.Sprintf("look for the outcomes of operation %s", id), pgx.ReadWrite, func(tx pgx.Tx) error {
		o, err := r.lock(ctx, tx, id)
		if err != nil {
			return err
		}
		for _, sql := range []string{r.sql.observe, r.sql.skipLater, r.sql.finish} {
			if sql == r.sql.skipLater && !o.ordered {
				continue
			}
			if _, err := tx.Exec(ctx, sql, id); err != nil {
				return err
			}
		}
		if p, err = r.read(ctx, tx, id); err != nil {
			return err
		}
		if why := o.abort(p); why != "" {
			p, err = r.giveUp(ctx, tx, id, why)
		}
		return err
	})
	return p, err
}

// abort says why an operation must stop, or "".
func (o operation) abort(p Progress) string {
	known, least := p.Delivered+p.DiedAgain, int64(o.canary)
	if least == 0 {
		least = enough
	}
	if o.abortAt == 0 || p.Waiting == 0 || known < least || p.DiedAgain*100 < int64(o.abortAt)*known {
		return ""
	}
	return fmt.Sprintf("%d of %d events died again, which is %d %% or more", p.DiedAgain, known, o.abortAt)
}
