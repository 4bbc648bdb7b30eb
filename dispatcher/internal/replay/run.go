package replay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/api/status"
)

// RunOptions are the options of [Replays.Run].
type RunOptions struct {
	// Wait continues until each outcome is known. Defaults to false: until each dead letter had its turn.
	Wait bool
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

// Run moves a replay at its rate until it is done, or stopped, or ctx ends. It continues where another Run
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
		if p.FinishedAt != 0 || p.Waiting == 0 && !opts.Wait {
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
