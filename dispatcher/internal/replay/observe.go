package replay

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/api/status"
)

// Observe reads the outcomes of the events that were put back, and returns the progress. In the same transaction it
// skips the later items of a key whose event is dead again, and stops a replay of which too many events are dead again.
// When no outcome is new, the progress says what the replay waits for.
// It fails with [ErrNotFound] for an unknown id, and when the database does.
func (r *Replays) Observe(ctx context.Context, id uuid.UUID) (p status.Replay, err error) {
	err = r.transaction(ctx, fmt.Sprintf("look for the outcomes of replay %s", id), pgx.ReadWrite, func(tx pgx.Tx) error {
		o, err := r.lock(ctx, tx, id)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, lookups); err != nil {
			return err
		}
		deadAgain, changed, err := r.outcomes(ctx, tx, id)
		if err != nil {
			return err
		}
		if len(deadAgain) > 0 && o.ordered {
			if _, err := tx.Exec(ctx, r.sql.skipLater, id, deadAgain); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, r.sql.finish, id); err != nil {
			return err
		}
		if p, err = r.read(ctx, tx, id); err != nil {
			return err
		}
		switch why := o.abort(p); {
		case why != "":
			p, err = r.giveUp(ctx, tx, id, why)
		case !changed:
			p.WaitingFor, err = r.waits(ctx, tx, p)
		}
		return err
	})
	return p, err
}

// outcomes stores the outcomes that are new, and returns the dead letters of the events that are dead again.
func (r *Replays) outcomes(ctx context.Context, tx pgx.Tx, id uuid.UUID) (deadAgain []int64, changed bool, err error) {
	rows, err := tx.Query(ctx, r.sql.observe, id)
	if err != nil {
		return nil, false, err
	}
	var (
		deadLetter int64
		state      State
		found      = map[State][]int64{}
	)
	if _, err := pgx.ForEachRow(rows, []any{&deadLetter, &state}, func() error { found[state] = append(found[state], deadLetter); return nil }); err != nil {
		return nil, false, err
	}
	for state, deadLetters := range found {
		if _, err := tx.Exec(ctx, r.sql.note, id, deadLetters, state); err != nil {
			return nil, false, err
		}
	}
	return found[StateDeadAgain], len(found) > 0, nil
}

// abort returns why a replay must stop, or "".
func (o replay) abort(p status.Replay) string {
	known, least := p.Delivered+p.DeadAgain, int64(o.canary)
	if least == 0 {
		least = minOutcomes
	}
	if o.abortAt == 0 || p.Waiting == 0 || known < least || p.DeadAgain*100 < int64(o.abortAt)*known {
		return ""
	}
	return fmt.Sprintf("%d of %d events are dead again, which is %d %% or more", p.DeadAgain, known, o.abortAt)
}
