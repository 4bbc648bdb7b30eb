package notify

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

//go:embed queries.sql
var files embed.FS

// settings of a transaction. The statements have one good plan, and the planner must not think otherwise of a small
// table. Nothing waits for the disk: what a crash of the database undoes is sent again.
const settings = `select set_config('statement_timeout', $1::text, true), set_config('lock_timeout', '500', true), set_config('jit', 'off', true),
	set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true),
	set_config('synchronous_commit', 'off', true)`

func timeout() string { return fmt.Sprint(writeTimeout.Milliseconds()) }

// take takes dead letters that are due, the earliest due first.
func (n *Notifier) take(ctx context.Context, limit int) (taken []*notification, err error) {
	var batch pgx.Batch
	batch.Queue(settings, timeout())
	batch.Queue(n.sql("take"), n.opts.Namespace, n.opts.Topics, limit, leaseTime, GiveUpAfter).Query(func(rows pgx.Rows) error {
		var d notification
		_, err := pgx.ForEachRow(rows, []any{&d.givenUp, &d.takenAt, &d.attempts, &d.ID, &d.eventID, &d.Group, &d.Topic, &d.Seq, &d.Type, &d.AggregateType,
			&d.AggregateID, &d.tenant, (*string)(&d.Reason), &d.Class, &d.Code, &d.Place, &d.Error, &d.Attempts, &d.DeadAt}, func() error {
			one := d
			one.Event, one.DeadAt, one.Advice = d.eventID.String(), d.DeadAt.UTC(), dispatcher.Recovery(d.Reason, d.Class)
			if one.tenant.Valid {
				one.Tenant = d.tenant.String()
			}
			taken = append(taken, &one)
			return nil
		})
		return err
	})
	if err := n.pool.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, n.wrap(err)
	}
	return taken, nil
}

// write writes back what became of dead letters, also at a stop: else no process would try them again until leaseTime is over.
func (n *Notifier) write(ctx context.Context, taken []*notification) error {
	stopped := ctx.Err() != nil
	var sent, ids []int64
	var attempts, attemptsBack []int32
	var delays []time.Duration
	for _, d := range taken {
		if d.sent {
			sent = append(sent, d.ID)
			continue
		}
		back := int32(1)
		if d.started {
			back = 0
		}
		ids, attempts, delays, attemptsBack = append(ids, d.ID), append(attempts, int32(d.attempts)), append(delays, d.delay(stopped)), append(attemptsBack, back)
	}
	var batch pgx.Batch
	batch.Queue(settings, timeout())
	if len(sent) > 0 {
		batch.Queue(n.sql("sent"), sent)
	}
	if len(ids) > 0 {
		batch.Queue(n.sql("again"), ids, attempts, delays, attemptsBack)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	return n.wrap(n.pool.SendBatch(ctx, &batch).Close())
}

// Waiting are the notifications that are still to be sent, by any process.
type Waiting struct {
	// DeadLetters counts them up to one more than [dispatcher.DepthCap]; then there may be more.
	DeadLetters int64
	// Oldest is when the first of these events became dead, and Seconds its age on the database's clock; nil and 0 for none.
	Oldest  *time.Time
	Seconds float64
}

// Waiting counts the notifications that are still to be sent. It fails when the database does.
func (n *Notifier) Waiting(ctx context.Context) (w Waiting, err error) {
	var batch pgx.Batch
	batch.Queue(settings, timeout())
	batch.Queue(n.sql("waiting"), n.opts.Namespace, n.opts.Topics, dispatcher.DepthCap+1).QueryRow(func(row pgx.Row) error {
		return row.Scan(&w.DeadLetters, &w.Oldest, &w.Seconds)
	})
	return w, n.wrap(n.pool.SendBatch(ctx, &batch).Close())
}

// wrap adds to an error what failed, and what to do where that is known.
func (n *Notifier) wrap(err error) error {
	if err == nil {
		return nil
	}
	remedy := ""
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "42501":
			remedy = `; have the owner run what "dispatcher migrate grants" prints`
		case "42P01", "3F000", "42703":
			remedy = `; the schema is older than this dispatcher: run "dispatcher migrate up", or create it again`
		}
	}
	return fmt.Errorf("notifications in schema %q: %w%s", n.opts.Schema, err, remedy)
}
