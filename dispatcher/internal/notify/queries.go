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
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sqlfile"
)

//go:embed sql/*.sql
var files embed.FS

// queries are the statements, for one schema.
type queries struct{ take, sent, again, waiting string }

func load(schema string) queries {
	read := sqlfile.Reader(files, schema)
	return queries{take: read("take"), sent: read("sent"), again: read("again"), waiting: read("waiting")}
}

// settings of a transaction. The statements have one good plan, and the planner must not think otherwise of a small
// table. Nothing waits for the disk: what a crash of the database brings back is sent again.
const settings = `select set_config('statement_timeout', $1::text, true), set_config('lock_timeout', '500', true), set_config('jit', 'off', true),
	set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true),
	set_config('synchronous_commit', 'off', true)`

func timeout() string { return fmt.Sprint(writeTimeout.Milliseconds()) }

// take takes dead letters that are due, the ones due first.
func (n *Notifier) take(ctx context.Context, limit int) (deaths []*death, err error) {
	var batch pgx.Batch
	batch.Queue(settings, timeout())
	batch.Queue(n.sql.take, n.opts.Namespace, n.opts.Topics, limit, held, GiveUpAfter).Query(func(rows pgx.Rows) error {
		var d death
		_, err := pgx.ForEachRow(rows, []any{&d.givenUp, &d.at, &d.attempts, &d.ID, &d.eventID, &d.Group, &d.Topic, &d.Seq, &d.Type, &d.AggregateType,
			&d.AggregateID, &d.tenant, (*string)(&d.Reason), &d.Class, &d.Code, &d.Place, &d.Error, &d.Attempts, &d.DeadAt}, func() error {
			one := d
			one.Event, one.DeadAt, one.Advice = d.eventID.String(), d.DeadAt.UTC(), dispatcher.Recovery(d.Reason, d.Class)
			if one.tenant.Valid {
				one.Tenant = d.tenant.String()
			}
			deaths = append(deaths, &one)
			return nil
		})
		return err
	})
	if err := n.pool.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, n.wrap(err)
	}
	return deaths, nil
}

// write writes back what became of dead letters, also at a stop: else nobody tried them again for as long as they are held.
func (n *Notifier) write(ctx context.Context, deaths []*death) error {
	stopped := ctx.Err() != nil
	var sent, ids []int64
	var attempts, returned []int32
	var delays []time.Duration
	for _, d := range deaths {
		if d.sent {
			sent = append(sent, d.ID)
			continue
		}
		back := int32(1)
		if d.begun {
			back = 0
		}
		ids, attempts, delays, returned = append(ids, d.ID), append(attempts, int32(d.attempts)), append(delays, d.delay(stopped)), append(returned, back)
	}
	var batch pgx.Batch
	batch.Queue(settings, timeout())
	if len(sent) > 0 {
		batch.Queue(n.sql.sent, sent)
	}
	if len(ids) > 0 {
		batch.Queue(n.sql.again, ids, attempts, delays, returned)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	return n.wrap(n.pool.SendBatch(ctx, &batch).Close())
}

// Waiting is what the address is still to be told of, whichever process tells it.
type Waiting struct {
	// DeadLetters are at most [dispatcher.DepthCap] and one; then there may be more.
	DeadLetters int64
	// Oldest is the time of the first of these deaths, and Seconds its age on the database's clock; nil and 0 for none.
	Oldest  *time.Time
	Seconds float64
}

// Waiting asks the database. It fails when the database does.
func (n *Notifier) Waiting(ctx context.Context) (w Waiting, err error) {
	var batch pgx.Batch
	batch.Queue(settings, timeout())
	batch.Queue(n.sql.waiting, n.opts.Namespace, n.opts.Topics, dispatcher.DepthCap+1).QueryRow(func(row pgx.Row) error {
		return row.Scan(&w.DeadLetters, &w.Oldest, &w.Seconds)
	})
	return w, n.wrap(n.pool.SendBatch(ctx, &batch).Close())
}

// wrap says what failed, and what to do where that is known.
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
			remedy = `; the schema is older than this dispatcher: run "dispatcher migrate up", or create it anew`
		}
	}
	return fmt.Errorf("notifications in schema %q: %w%s", n.opts.Schema, err, remedy)
}
