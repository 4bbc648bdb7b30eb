package retention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// leaseName is the row of outbox_sweeps that is the lease of all sweeps, and the sweep of the whole tables.
const leaseName = "retention"

// errLost ends a run whose lease another worker has: this process was frozen, or the database was unreachable for long.
var errLost = errors.New("the lease of the sweep is another worker's now")

// Sweep does one run, if one is due and no other process sweeps the database. It reports whether it did. It fails when
// the database does, and when ctx ends. A run that is whole fails with the first row that the database refused to remove, with the
// outcomes of replays that it could not read, or with the days of the journal.
func (s *Sweeper) Sweep(ctx context.Context) (ran bool, err error) {
	ran, _, err = s.attempt(ctx)
	return ran, err
}

// attempt is Sweep. Without an error, it also reports whether the sweep is known to work: it is not while another process
// has the lease, whose run may fail as the last one of this process did. With an error, whether a run failed, and not
// only the check of whether one is due.
func (s *Sweeper) attempt(ctx context.Context) (ran, known bool, err error) {
	due, err := s.due(ctx)
	if err != nil || !due {
		return false, err == nil, err
	}
	if ok, err := s.lease(ctx); err != nil || !ok {
		return false, false, err
	}
	defer func() {
		leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementTimeout)
		defer cancel()
		if failed := s.write(leave, s.sql("leave"), pgUUID(s.opts.Worker)); err == nil {
			err = failed
		}
	}()
	if due, err = s.due(ctx); err != nil || !due { // another one has just done it
		return false, err == nil, err
	}
	r := &run{Sweeper: s, extendedAt: time.Now(), pages: s.maxPages}
	if err := r.sweep(ctx); errors.Is(err, errLost) {
		return false, false, nil // the other worker continues it
	} else if err != nil {
		return false, true, err
	}
	if r.refused != nil {
		state, err := s.State(ctx)
		if err != nil {
			return true, false, err
		}
		if state.Ended != nil {
			s.setRefused(r.refused, state.Ended)
		}
	}
	return true, true, r.refused
}

func (s *Sweeper) due(ctx context.Context) (bool, error) {
	state, err := s.State(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	// The next run is due, or another process has done it.
	if err == nil && s.refused != nil && (state.due || state.Ended == nil || !state.Ended.Equal(*s.refusedAt)) {
		s.refused = nil
	}
	return state.due, err
}

func (s *Sweeper) setRefused(err error, ended *time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused, s.refusedAt = err, ended
}

// lease takes or extends the lease.
func (s *Sweeper) lease(ctx context.Context) (ok bool, err error) {
	return s.one(ctx, s.sql("take"), []any{pgUUID(s.opts.Worker), leaseTime}, &ok)
}

// run is one run of a sweep.
type run struct {
	*Sweeper
	position, end int64 // the page that is next, and that behind the last
	pages         int64 // how many to read at a time
	extendedAt    time.Time
	removed       Counts // since the progress was last written
	refused       error  // the first of the rows that stay, the outcomes that were not read, and the days of the journal
}

// sweep does a whole run. It writes its progress, also if it fails.
func (r *run) sweep(ctx context.Context) (err error) {
	began := time.Now()
	if _, err := r.one(ctx, r.sql("begin"), []any{r.opts.Name, r.opts.Namespace, r.opts.Delivered}, &r.end, &r.position); err != nil {
		return err
	}
	var total Counts
	defer func() {
		if err != nil {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementTimeout)
			defer cancel()
			_ = r.writeProgress(last) // err has the cause
		}
	}()
	if err := r.replays(ctx); err != nil {
		return err
	}
	rows := r.events(ctx, &total)
	if rows == nil {
		rows = r.deadLetters(ctx, &total)
	}
	if rows != nil && !keepsOthers(ctx, rows) {
		return rows
	}
	if err := cmp.Or(r.journal(ctx), rows); err != nil { // the journal needs its days also while rows are slow
		return err
	}
	if err := r.extendLease(ctx); err != nil {
		return err
	}
	if err := r.write(ctx, r.sql("end"), r.opts.Name, r.every()); err != nil {
		return err
	}
	if total != (Counts{}) {
		r.opts.Logger.Info("removed rows after their retention", "delivered", total.Delivered, "withdrawn", total.Withdrawn, "dead", total.Dead,
			"expired", total.Expired, "deadLetters", total.DeadLetters, "took", time.Since(began).Round(time.Millisecond))
	}
	return nil
}

// events removes delivered, withdrawn and expired rows, page after page.
func (r *run) events(ctx context.Context, total *Counts) error {
	for r.position < r.end {
		pages := min(r.pages, r.end-r.position)
		var n int64
		err := r.step(ctx, total, func(c *Counts) error {
			_, err := r.one(ctx, r.sql("delivered"), []any{tid(r.position), tid(r.position + pages), r.opts.Delivered,
				r.opts.Namespace, r.opts.Topics, maxRows}, &c.Delivered, &c.Withdrawn)
			n = c.Delivered + c.Withdrawn
			return err
		})
		if dispatcher.IsTooSlow(err) && pages > 1 {
			r.pages = max(1, pages/8)
			continue
		}
		if isRefused(err) { // the pages before and behind it are not to stay for ever
			if r.pages = max(1, pages/8); pages == 1 {
				r.refuse(err)
				r.position++
			}
			continue
		}
		if err != nil {
			return err
		}
		if n < maxRows { // else these pages may have more
			r.position += pages
		}
	}
	return nil
}

// deadLetters removes and resolves dead letters, with the rows of their events.
func (r *run) deadLetters(ctx context.Context, total *Counts) error {
	var unresolved *time.Duration // null: never
	if r.opts.DeadUnresolved > 0 {
		unresolved = &r.opts.DeadUnresolved
	}
	for after, more := int64(0), true; more; {
		var old []pgtype.UUID // which every mode of pgx can write back
		err := r.step(ctx, total, func(c *Counts) (err error) {
			var n int
			if _, err = r.one(ctx, r.sql("dead_letters"), []any{after, readDeadLetters, r.opts.DeadResolved, unresolved,
				r.opts.Namespace, r.opts.Topics}, &after, &n, &old); err != nil {
				return err
			}
			more = n == readDeadLetters
			if len(old) > 0 {
				*c, err = r.settle(ctx, old, unresolved)
			}
			return err
		})
		if keepsOthers(ctx, err) && len(old) > 0 {
			err = r.settleEach(ctx, total, old, unresolved)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// settleEach settles each of some events by itself, since the database refuses one of them, or takes too long for all. It
// fails when maxSlow of them in a row take too long: then it is not for these rows.
func (r *run) settleEach(ctx context.Context, total *Counts, events []pgtype.UUID, unresolved *time.Duration) error {
	slow := 0
	for i := range events {
		err := r.step(ctx, total, func(c *Counts) (err error) {
			*c, err = r.settle(ctx, events[i:i+1], unresolved)
			return err
		})
		if slow++; err == nil || isRefused(err) {
			slow = 0
		}
		if err != nil && (!keepsOthers(ctx, err) || slow == maxSlow) {
			return err
		}
		r.refuse(err)
	}
	return nil
}

// keepsOthers reports whether the database refuses some rows, or takes too long for them, so that the others are to be tried.
func keepsOthers(ctx context.Context, err error) bool {
	return isRefused(err) || ctx.Err() == nil && dispatcher.IsTooSlow(err)
}

// isRefused reports whether the database refuses to remove a row: by a foreign key, a check or a trigger of the user's.
func isRefused(err error) bool {
	code := sqlState(err)
	return len(code) == 5 && slices.Contains([]string{"22", "23", "44", "P0"}, code[:2])
}

// refuse keeps the first error of keepsOthers.
func (r *run) refuse(err error) {
	if err != nil && r.refused == nil {
		r.refused = fmt.Errorf("the database refuses to remove some rows, or is too slow for them, and the others are removed: %w; drop the foreign key or the trigger, index the columns of the key, or remove the rows that refer to them", err)
	}
}

// replays reads the outcomes of replays before the rows that have them are removed, and removes operations that finished
// long ago. What the database does not let it read holds up no other step: a dead letter without an outcome stays.
func (r *run) replays(ctx context.Context) error {
	var removed int
	_, err := r.one(ctx, r.sql("replays"), []any{r.opts.Namespace, r.opts.DeadResolved}, &removed)
	if keepsOthers(ctx, err) {
		r.refused = fmt.Errorf("the outcomes of replays were not read, and what has none stays: %w; run `dispatcher dead operations --operation ID` for each replay that is open", err)
		return nil
	}
	return err
}

// journal removes the days of the journal that are old, and then makes those that come (CONTRACT C-61). A failure of it
// ends no run: the next one tries again, and not each process every PollEvery, since it locks the journal.
func (r *run) journal(ctx context.Context) error {
	for parts := 1; parts > 0; {
		err := r.step(ctx, &Counts{}, func(*Counts) error {
			_, err := r.one(ctx, r.sql("journal"), nil, &parts)
			return err
		})
		if keepsOthers(ctx, err) {
			r.refused = cmp.Or(r.refused, fmt.Errorf("days of the journal were not made or not removed: %w; the next run tries again, and their records are in outbox_journal_default until then", err))
			return nil
		}
		if err != nil {
			return err
		}
		if parts > 0 {
			r.opts.Logger.Info("removed days of the journal after their retention", "parts", parts)
		}
	}
	return nil
}

// settle removes the old dead letters and dead rows of some events. The rows are locked by one statement and
// read by the next, whose snapshot is later: what it sees of them holds until the end of the transaction.
func (r *run) settle(ctx context.Context, events []pgtype.UUID, unresolved *time.Duration) (c Counts, err error) {
	err = pgx.BeginTxFunc(ctx, r.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		c = Counts{}
		if _, err := tx.Exec(ctx, settings, timeout()); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, r.sql("lock"), events)
		if err != nil {
			return err
		}
		ours, err := pgx.CollectRows(rows, pgx.RowTo[pgtype.UUID])
		if err != nil || len(ours) == 0 {
			return err
		}
		if err := tx.QueryRow(ctx, r.sql("resolved"), ours, r.opts.DeadResolved).Scan(&c.Dead, &c.DeadLetters); err != nil || unresolved == nil {
			return err
		}
		var dead int64
		err = tx.QueryRow(ctx, r.sql("expired"), ours, *unresolved).Scan(&dead, &c.Expired)
		c.Dead += dead
		return err
	})
	if err != nil {
		return Counts{}, r.wrap(err)
	}
	return c, nil
}

// step does a piece of work, reports what it removed, and pauses.
func (r *run) step(ctx context.Context, total *Counts, work func(*Counts) error) error {
	if time.Since(r.extendedAt) >= r.noteEvery {
		if err := r.extendLease(ctx); err != nil {
			return err
		}
	}
	var c Counts
	busy, began := r.opts.Busy(), time.Now()
	err := work(&c)
	took := time.Since(began)
	switch {
	case took > slow:
		r.pages = max(1, r.pages/2)
	case took < quick:
		r.pages = min(r.maxPages, 2*r.pages)
	}
	if c != (Counts{}) {
		r.removed.add(c)
		total.add(c)
		r.opts.Removed(c)
	}
	r.pause(ctx, pauseAfter(took, busy))
	if err == nil {
		err = ctx.Err()
	}
	return err
}

// pauseAfter returns the pause after a piece of work.
func pauseAfter(took time.Duration, busy bool) time.Duration {
	if busy {
		return min(busyPauseFactor*took, maxPause)
	}
	return min(pauseFactor*took, maxPause)
}

// extendLease extends the lease, and writes the progress.
func (r *run) extendLease(ctx context.Context) error {
	ok, err := r.lease(ctx)
	if err != nil {
		return err
	}
	if !ok {
		return errLost
	}
	r.extendedAt = time.Now()
	return r.writeProgress(ctx)
}

// writeProgress writes the progress, and what the run removed since the last time.
func (r *run) writeProgress(ctx context.Context) error {
	err := r.write(ctx, r.sql("progress"), r.opts.Name, pgUUID(r.opts.Worker), r.position, r.removed.Delivered, r.removed.Dead, r.removed.Expired, r.removed.DeadLetters, r.removed.Withdrawn)
	if err == nil {
		r.removed = Counts{}
	}
	return err
}

// State is a sweep's row in outbox_sweeps, which all processes share.
type State struct {
	// Pages of the events' table, and Position the one that is next, while Running.
	Pages, Position int64
	// Running is true while a run is under way.
	Running bool
	// Ended is when the last whole run ended, and Seconds how long it took; nil before the first.
	Ended   *time.Time
	Seconds float64
	// Next is when the next run is due; nil before the first.
	Next *time.Time
	// Removed is everything that was removed since the sweep first ran.
	Removed Counts

	due bool
}

// State reads the sweep's row. It fails when the database does.
func (s *Sweeper) State(ctx context.Context) (state State, err error) {
	c := &state.Removed
	found, err := s.one(ctx, s.sql("state"), []any{s.opts.Name}, &state.Pages, &state.Position, &state.Running, &state.Ended, &state.Next,
		&state.Seconds, &c.Delivered, &c.Dead, &c.Expired, &c.DeadLetters, &c.Withdrawn, &state.due)
	if !found {
		return State{due: true}, err
	}
	return state, err
}

// tid is the first place of a page.
func tid(page int64) string { return fmt.Sprintf("(%d,0)", page) }

// pgUUID is an id as every mode of pgx writes it.
func pgUUID(id uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }
