package adopt

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

func (r *run) cutover() error {
	if r.state == Returning {
		return fmt.Errorf("adoption %s is on its way back; finish that first: dispatcher adopt back --name %s", r.spec.Name, r.spec.Name)
	}
	if r.layout.log {
		return r.cutoverLog()
	}
	r.result.State, r.result.Next = Live, nextLive
	// What reads the whole table comes once before producers wait. A status that comes up after that is like one after the
	// cut-over: adopt status names it.
	if err := r.limit(readTimeout); err != nil {
		return err
	}
	if err := r.checkValues(); err != nil {
		return err
	}
	if err := r.limit(shadowTimeout); err != nil {
		return err
	}
	open, err := r.countToMove()
	if err != nil {
		return err
	}
	if err := r.limit(shadowTimeout + time.Duration(open)*rowTimeout); err != nil {
		return err
	}
	if err := r.lock("exclusive"); err != nil {
		return err
	}
	if err := r.checkID(); err != nil {
		return err
	}
	if open, err = r.countToMove(); err != nil {
		return err
	}
	r.result.Moved = open
	// No statement takes a stronger lock than the first: producers who have read the table and now write would wait for
	// this transaction while it waits for them.
	err = r.refusingNoMore(func() error {
		for _, sql := range []string{
			r.function(true),
			r.move(r.openRows(r.layout.order), keepEvent),
			"update outbox_adoptions set state = 'Live', cutover_at = clock_timestamp() where state = 'Shadow' and name = " + literal(r.spec.Name),
		} {
			if err := r.exec(sql); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || r.failed != nil {
		return err
	}
	if r.options.DryRun {
		r.result.Changed = r.state != Live || open > 0
		return nil
	}
	left, err := r.countOpen(r.options.MaxRows + 1)
	if err != nil {
		return err
	}
	if r.result.Moved+left != open {
		return fmt.Errorf("of %d open rows of table %s %d became events, and %d are still open, so nothing was changed; look for two rows of one id, and for triggers and rules of the table", open, r.spec.Table, r.result.Moved, left)
	}
	return nil
}

// errRefused undoes a cut-over that refuses more than its shadow.
var errRefused = errors.New("rows are refused")

// refusingNoMore moves rows, and counts them. Rows that are refused and were not in the shadow undo that. They are noted then, so that
// the next cut-over leaves them to a person who knows.
func (r *run) refusingNoMore(move func() error) error {
	if r.options.DryRun {
		return move()
	}
	type refusal struct{ ID, Reason, Row string }
	var before []string
	var more []refusal
	const known = `select coalesce(array_agg(their_id), '{}') from outbox_adopted where adoption = $1 and refused is not null`
	if err := r.tx.QueryRow(r.ctx, known, r.spec.Name).Scan(&before); err != nil {
		return err
	}
	outer := r.tx
	err := pgx.BeginFunc(r.ctx, outer, func(tx pgx.Tx) error {
		r.tx = tx
		err := move()
		if err == nil {
			err = r.countMoved()
		}
		if err != nil || r.state == Live {
			return err
		}
		const look = `select their_id, refused, coalesce(their_row::text, '') from outbox_adopted where adoption = $1 and refused is not null and their_id <> all ($2::text[]) order by seq`
		rows, _ := tx.Query(r.ctx, look, r.spec.Name, before)
		if more, err = pgx.CollectRows(rows, pgx.RowToStructByPos[refusal]); err == nil && len(more) > 0 {
			err = errRefused
		}
		return err
	})
	r.tx = outer
	if !errors.Is(err, errRefused) {
		return err
	}
	const named = 5
	text := fmt.Sprintf("the outbox does not take %d open rows of table %s that the shadow has not seen, so nothing was moved", len(more), r.spec.Table)
	for i, one := range more {
		if i < named {
			text += fmt.Sprintf("; row %s: %s", one.ID, one.Reason)
		}
		const note = `select outbox_adopt_note($1, $2, $3, nullif($4, '')::json)`
		if _, err := r.tx.Exec(r.ctx, note, r.spec.Name, one.ID, one.Reason, one.Row); err != nil {
			return err
		}
	}
	r.result.State = r.state
	r.failed = errors.New(text + "; correct them, or leave them to their worker: run cutover again")
	return nil
}

// countToMove counts the open rows, and refuses more than are to be moved.
func (r *run) countToMove() (int64, error) {
	open, err := r.countOpen(r.options.MaxRows + 1)
	if err == nil && open > int64(r.options.MaxRows) {
		err = fmt.Errorf("more than %d rows of %s are open, and producers would wait while they are moved; let their worker catch up, or raise the limit (--max-rows)", r.options.MaxRows, r.spec.Table)
	}
	return open, err
}

// countOpen counts the open rows of their table, as far as the limit.
func (r *run) countOpen(limit int) (n int64, err error) {
	count := fmt.Sprintf(`select count(*) from (select from %s as r where %s limit %d) as r`, r.their.name(), r.open(), limit)
	return n, r.tx.QueryRow(r.ctx, count).Scan(&n)
}

// countMoved reads what Cutover has done.
func (r *run) countMoved() error {
	count := `select coalesce(nullif(current_setting('outbox.adopt_moved', true), ''), '0')::bigint,
		(select count(*) from outbox_adopted where adoption = $1 and refused is not null)`
	if err := r.tx.QueryRow(r.ctx, count, r.spec.Name).Scan(&r.result.Moved, &r.result.Refused); err != nil {
		return err
	}
	r.result.Changed = r.state != Live || r.result.Moved > 0
	return nil
}
