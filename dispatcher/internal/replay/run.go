package replay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/api/status"
)

// RunOptions are the options of [Replays.Run].
type RunOptions struct {
	// Wait continues until each outcome is known, or the replay has stopped. Defaults to false: until each dead letter had its turn.
	Wait bool
	// Linger continues also when the replay has stopped, until each outcome of what it had put back is known, which may take hours.
	// Defaults to false.
	Linger bool
	// Timeout ends a Run in which nothing has happened for so long: no dead letter had its turn, and no outcome was new. The
	// error is [ErrTimeout]; the replay stays as it is, and the next Run continues it. Defaults to 0: never.
	Timeout time.Duration
	// Report is called with the progress at the beginning, after each observation, and at the end. Defaults to none.
	Report func(status.Replay)
	// Poll is the least time between two observations. Defaults to 1s.
	Poll time.Duration

	pause func(context.Context, time.Duration) error // in tests
}

// DefaultTimeout is the Timeout of the commands. With the default backoff an event waits at most 8h 8m in total before it is
// dead again, without the time of its attempts.
const DefaultTimeout = 24 * time.Hour

// ErrTimeout is the error of a Run in which nothing has happened for long.
var ErrTimeout = errors.New("nothing has happened")

// timeout is ErrTimeout with what the replay waits for.
func timeout(p status.Replay, after time.Duration) error {
	return fmt.Errorf("%w for %s: %s", ErrTimeout, after, strings.Join(append([]string{p.String()}, p.Why()...), "; "))
}

// maxBatch is the most dead letters of one step.
const maxBatch = 500

// Run moves a replay at its rate until it is done, or has stopped, or ctx ends. It continues where another Run
// stopped or was killed. When ctx ends, the batch that is under way is done or rolled back, and the rest waits for
// the next Run. It fails as [Replays.Step] does, at the end of the timeout, and with the error of ctx.
func (r *Replays) Run(ctx context.Context, id uuid.UUID, opts RunOptions) (p status.Replay, err error) {
	if opts.Poll <= 0 {
		opts.Poll = time.Second
	}
	if opts.pause == nil {
		opts.pause = pause
	}
	lastChange := time.Now()
	for schedule := (observationSchedule{poll: opts.Poll}); ; {
		if begin := time.Now(); !begin.Before(schedule.at) {
			before := p
			if p, err = r.Observe(ctx, id); err != nil {
				return p, err
			}
			changed := outcomes(p) != outcomes(before)
			if schedule.observed(time.Since(begin), changed); changed {
				lastChange = time.Now()
			}
			if opts.Report != nil {
				opts.Report(p)
			}
		}
		if p.FinishedAt != 0 || p.Waiting == 0 && (!opts.Wait || p.Stopped != "" && !opts.Linger) {
			return p, nil
		}
		if quiet := time.Since(lastChange); opts.Timeout > 0 && quiet >= opts.Timeout {
			return p, timeout(p, opts.Timeout)
		}
		done, err := r.Step(ctx, id, batchOf(p.Rate))
		if err != nil {
			return p, err
		}
		wait := time.Duration(done) * time.Second / time.Duration(p.Rate)
		if p.Waiting -= int64(done); done == 0 {
			wait = time.Until(schedule.at)
		} else if lastChange = time.Now(); p.Waiting <= 0 {
			schedule.at = time.Time{}
		}
		if err := opts.pause(ctx, wait); err != nil {
			return p, err
		}
	}
}

// outcomes is a number that changes with each outcome.
func outcomes(p status.Replay) int64 { return 2*(p.Delivered+p.DeadAgain) + p.Failing }

// observationSchedule spaces observations: opts.Poll/20 after a new outcome, doubling up to opts.Poll. An observation of
// many open outcomes costs the database time, so they take a tenth of the time at most.
type observationSchedule struct {
	poll, wait time.Duration
	at         time.Time
}

func (s *observationSchedule) observed(took time.Duration, changed bool) {
	if s.wait = min(2*s.wait, s.poll); changed || s.wait == 0 {
		s.wait = s.poll / 20
	}
	s.at = time.Now().Add(max(s.wait, 10*took))
}

// batchOf is the number of dead letters of a step: those of a quarter of a second.
func batchOf(rate int) int { return min(max(rate/4, 1), maxBatch) }

// pause waits, or returns the error of ctx.
func pause(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(max(wait, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Operation is a replay, a discard or a reopen, with who requested it and why.
type Operation struct {
	status.Replay
	Reason      string `json:"reason"`
	RequestedBy string `json:"requestedBy"`
	// Login is the one that began it, as the database knows it.
	Login string `json:"login"`
	// Running is true when a process has run it in the last minute.
	Running bool `json:"running"`
	// Canary is how many events go first, and alone.
	Canary int64 `json:"canary,omitempty"`
}

// MaxOperations is how many [Replays.Operations] returns at most.
const MaxOperations = 100

// Operations returns the newest operations, at most [MaxOperations], as their last [Replays.Observe] left them. It fails
// when the database does.
func (r *Replays) Operations(ctx context.Context) (all []Operation, err error) {
	err = r.transaction(ctx, "list the operations", pgx.ReadOnly, func(tx pgx.Tx) error {
		all, err = r.operations(ctx, tx, nil)
		return err
	})
	return all, err
}

func (r *Replays) read(ctx context.Context, tx pgx.Tx, id uuid.UUID) (status.Replay, error) {
	found, err := r.operations(ctx, tx, &id)
	if err != nil {
		return status.Replay{}, err
	}
	if len(found) == 0 {
		return status.Replay{}, ErrNotFound
	}
	return found[0].Replay, checkNamespace(id, found[0].Namespace, r.namespace)
}

func (r *Replays) operations(ctx context.Context, tx pgx.Tx, id *uuid.UUID) ([]Operation, error) {
	namespace := r.namespace
	if id != nil {
		namespace = "" // it is refused by its name
	}
	rows, err := tx.Query(ctx, r.sql("read"), id, namespace, MaxOperations)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (o Operation, err error) {
		var began, now time.Time
		var paced, finished *time.Time
		var claimed, gone, notDead, stopped int64
		p := &o.Replay
		err = row.Scan(&p.ID, &p.Namespace, &p.Action, &p.Rate, &o.Canary, &began, &paced, &finished, &p.Stopped, &p.LastError,
			&p.Waiting, &p.Pending, &p.Failing, &p.Delivered, &p.DeadAgain, &p.Discarded, &p.Reopened, &claimed, &gone, &notDead, &stopped,
			&o.Reason, &o.RequestedBy, &o.Login, &now, &o.Running)
		p.StartedAt = status.At(began)
		if finished != nil {
			p.FinishedAt = status.At(*finished)
		}
		p.Matched = p.Waiting + p.Pending + p.Failing + p.Delivered + p.DeadAgain + p.Discarded + p.Reopened
		countSkipped(p, status.SkippedClaimed, claimed)
		countSkipped(p, status.SkippedGone, gone)
		countSkipped(p, status.SkippedNotDead, notDead)
		countSkipped(p, status.SkippedStopped, stopped)
		if paced != nil {
			p.EndsAt = endsAt(*p, o.Canary, now.Sub(*paced), now)
		}
		o.Running = o.Running && finished == nil
		return o, err
	})
}

// countSkipped counts dead letters that were left as they were. They are of the set.
func countSkipped(p *status.Replay, reason string, n int64) {
	if p.Matched += n; n > 0 {
		p.Skipped = append(p.Skipped, status.Skipped{Reason: reason, Count: n})
	}
}

// endsAt estimates when the last event has an outcome: at the speed since the canary, and at the rate at most. It is zero when
// nothing is left, and when the replay has stopped.
func endsAt(p status.Replay, canary int64, since time.Duration, now time.Time) status.Time {
	left, known := float64(p.Waiting+p.Pending), float64(p.Delivered+p.DeadAgain+p.Failing-canary)
	if left == 0 || p.Stopped != "" {
		return 0
	}
	speed := float64(p.Rate)
	if known > 0 && since > 0 {
		speed = min(speed, known/since.Seconds())
	}
	return status.At(now.Add(time.Duration(left / speed * float64(time.Second))))
}

// maxWaits is how many events that were put back are examined for what they wait for.
const maxWaits = 1000

// waits adds what a replay waits for. The end of what waits is not known.
func (r *Replays) waits(ctx context.Context, tx pgx.Tx, p *status.Replay) error {
	if p.Waiting+p.Pending == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, lookups); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, r.sql("waits"), p.ID, maxWaits)
	if err != nil {
		return err
	}
	p.WaitingFor, err = pgx.CollectRows(rows, pgx.RowToStructByPos[status.Wait])
	for _, wait := range p.WaitingFor {
		if wait.Reason != status.WaitsForDelivery {
			p.EndsAt = 0
		}
	}
	return err
}

// checkNamespace refuses a replay of another namespace.
func checkNamespace(id uuid.UUID, namespace, want string) error {
	if want == "" || namespace == want {
		return nil
	}
	return fmt.Errorf("replay %s: %w: of %q, and not of %q; name the file of a dispatcher of %[3]q", id, ErrNamespace, namespace, want)
}
