package replay

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/api/status"
)

// Operation is a replay, a discard or a reopen, with who requested it and why.
type Operation struct {
	status.Replay
	Reason      string `json:"reason"`
	RequestedBy string `json:"requestedBy"`
	// Login is the one that began it, as the database knows it.
	Login string `json:"login"`
	// Running is true when a process has run it in the last minute.
	Running bool `json:"running"`
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
		var finished *time.Time
		var claimed, gone, notDead, stopped int64
		p := &o.Replay
		err = row.Scan(&p.ID, &p.Namespace, &p.Action, &p.Rate, &began, &finished, &p.Stopped, &p.LastError,
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
		p.EndsAt = endsAt(*p, began, now)
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

// endsAt estimates when the last event has an outcome: at the speed since the beginning, and at the rate at most. It is zero
// when nothing is left.
func endsAt(p status.Replay, began, now time.Time) status.Time {
	left, known := float64(p.Waiting+p.Pending), float64(p.Delivered+p.DeadAgain+p.Failing)
	if left == 0 {
		return 0
	}
	speed := float64(p.Rate)
	if since := now.Sub(began).Seconds(); known > 0 && since > 0 {
		speed = min(speed, known/since)
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
