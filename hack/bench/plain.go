package main

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// plain is a loop of plain SQL on our table, which a team could write.
func plain() system {
	s := ours()
	s.name, s.settings = "plain SQL", "one loop in Go: one connection claims 2000, another one acks"
	s.job.System, s.job.Batch, s.job.Poll = "plain", 2000, 2*time.Millisecond
	return s
}

// The simplest statements on our table that claim and write back safely among workers: without a limit of attempts,
// without dead letters, for one topic.
const (
	plainClaim = `with found as materialized (
			select ctid from outbox.outbox_events
			where live and namespace = $1 and topic = $2 and next_attempt_at <= now()
				and (next_attempt_at, id) > ($3::timestamptz, $4::uuid)
				and (status = 'pending' or locked_until < now())
			order by next_attempt_at, id
			limit $5 for update skip locked)
		update outbox.outbox_events
		set status = 'processing', attempts = attempts + 1, locked_by = $6, locked_until = now() + '30s', updated_at = now()
		where ctid = any (array(select ctid from found))
		returning id, attempts, next_attempt_at, payload`
	plainAck = `update outbox.outbox_events
		set status = 'delivered', locked_by = null, locked_until = null, updated_at = now()
		where id = any ($1::uuid[]) and locked_by = $2`
	plainDelete = `delete from outbox.outbox_events where id = any ($1::uuid[]) and locked_by = $2`
)

// plainRow is a claimed row.
type plainRow struct {
	id       pgtype.UUID
	attempts int32
	due      time.Time
	payload  []byte
}

// plainLoop claims on one connection, and writes back on another one while the next claim runs.
type plainLoop struct {
	*counter
	claims, acks *pgx.Conn
	self         pgtype.UUID
}

// plainWork prepares a loop. Claims and acks do not wait for the disk, as those of the dispatcher.
func plainWork(ctx context.Context, c *counter) (func(context.Context) error, error) {
	config, err := pgx.ParseConfig(c.DSN)
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{
		"synchronous_commit": "off", "plan_cache_mode": "force_generic_plan", "jit": "off",
		"enable_seqscan": "off", "enable_bitmapscan": "off",
	} {
		config.RuntimeParams[name] = value
	}
	l := &plainLoop{counter: c, self: pgtype.UUID{Bytes: uuid.New(), Valid: true}}
	if l.claims, err = pgx.ConnectConfig(ctx, config); err != nil {
		return nil, err
	}
	l.acks, err = pgx.ConnectConfig(ctx, config)
	return l.run, err
}

func (l *plainLoop) run(ctx context.Context) error {
	batches, failed := make(chan []plainRow, 1), make(chan error, 1)
	go func() { failed <- l.ack(context.WithoutCancel(ctx), batches) }()
	err := l.claim(ctx, batches)
	close(batches)
	return errors.Join(err, <-failed)
}

// claim claims until ctx ends. It looks again after the poll interval when nothing is due.
func (l *plainLoop) claim(ctx context.Context, batches chan<- []plainRow) error {
	floor := plainRow{id: pgtype.UUID{Valid: true}}
	full := time.Now() // when a claim last began at the front: rows may become due below the floor
	for ctx.Err() == nil {
		rows, err := l.claims.Query(context.WithoutCancel(ctx), plainClaim, namespace, topic, floor.due, floor.id, l.Batch, l.self)
		if err != nil {
			return err
		}
		batch, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (row plainRow, err error) {
			err = r.Scan(&row.id, &row.attempts, &row.due, &row.payload)
			return row, err
		})
		if err != nil {
			return err
		}
		for _, row := range batch {
			if err := l.saw(row.payload, "", 0); err != nil {
				return err
			}
			if at := row.due.Compare(floor.due); at > 0 || at == 0 && bytes.Compare(row.id.Bytes[:], floor.id.Bytes[:]) > 0 {
				floor = row
			}
		}
		if len(batch) < l.Batch || time.Since(full) > time.Second {
			floor, full = plainRow{id: pgtype.UUID{Valid: true}}, time.Now()
		}
		if len(batch) > 0 {
			batches <- batch
		}
		if len(batch) < l.Batch {
			_ = sleep(ctx, l.Poll) // its end is seen above
		}
	}
	return nil
}

func (l *plainLoop) ack(ctx context.Context, batches <-chan []plainRow) (failed error) {
	sql := plainAck
	if l.Delete {
		sql = plainDelete
	}
	for batch := range batches {
		if failed != nil {
			continue // so that the claims end
		}
		ids := make([]pgtype.UUID, len(batch))
		for i, row := range batch {
			ids[i] = row.id
		}
		tag, err := l.acks.Exec(ctx, sql, ids, l.self)
		failed = err
		l.done(int(tag.RowsAffected()), 0)
	}
	return failed
}
