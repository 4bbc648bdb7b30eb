package adopt

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

func (r *run) cutover() error {
	if r.state == Returning {
		return fmt.Errorf("adoption %s is on its way back; finish that first: dispatcher adopt back --name %s", r.spec.Name, r.spec.Name)
	}
	if r.layout.log {
		return r.cutoverLog()
	}
	table := r.their.name()
	r.result.State, r.result.Next = Live, nextLive
	// What reads the whole table comes once before producers wait. A status that comes up after that is like one after the
	// cut-over: adopt status names it.
	if err := r.limit(readTimeout); err != nil {
		return err
	}
	if err := r.checkValues(); err != nil {
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "57014" {
			err = remedied{err, fmt.Sprintf("no producer has waited: to count the values of column %s took longer than %s; delete rows that were sent, or create an index (concurrently) on that column and vacuum the table, and run it again", r.layout.status, readTimeout)}
		}
		return err
	}
	if err := r.limit(shadowTimeout); err != nil {
		return err
	}
	began := time.Now()
	open, err := r.countToMove()
	if err != nil {
		return err
	}
	scan := time.Since(began)
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
	statements := []string{
		r.function(true),
		fmt.Sprintf("create or replace trigger %s_again after update on %s for each row when (%s) execute function %s()", r.trigger(), table, r.open("new"), r.functionName()),
		r.render("move", map[string]string{"{open}": r.open("t"), "{order}": r.in(r.layout.order, "t"),
			"{body}": r.body("true", "false", keepEvent, raise)}),
		"update outbox_adoptions set state = 'Live', cutover_at = clock_timestamp() where state = 'Shadow' and name = " + literal(r.spec.Name),
	}
	for _, sql := range statements {
		if err := r.exec(sql); err != nil {
			return err
		}
	}
	if r.options.DryRun {
		r.result.Changed, r.result.Wait = r.state != Live || open > 0, 3*scan+time.Duration(open)*rowTime // it is read three times
		return nil
	}
	if err := r.countMoved(); err != nil {
		return err
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

// countToMove counts the open rows, and refuses more than are to be moved.
func (r *run) countToMove() (int64, error) {
	open, err := r.countOpen(r.options.MaxRows + 1)
	if err == nil && open > int64(r.options.MaxRows) {
		err = fmt.Errorf("more than %d rows of %s are open, and producers would wait while they are moved; let their worker catch up, or raise the limit (--max-rows)", r.options.MaxRows, r.spec.Table)
	}
	return open, err
}

// rowTime is about how long Cutover takes for a row: 185 µs on two quiet cores, by TestManyRowsInOneTransaction.
const rowTime = 250 * time.Microsecond

// countOpen counts the open rows of their table, as far as the limit.
func (r *run) countOpen(limit int) (n int64, err error) {
	count := fmt.Sprintf(`select count(*) from (select from %s as r where %s limit %d) as r`, r.their.name(), r.open("r"), limit)
	return n, r.tx.QueryRow(r.ctx, count).Scan(&n)
}

// keepEvent keeps a row's event, by which outbox_adopt_moved counts.
const keepEvent = "\n        v_events := v_events || v_event;"

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
