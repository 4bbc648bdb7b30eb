package main

import (
	"bytes"
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// The simplest statements on our table that claim and write back safely among workers: no attempts
// limit, no dead letters, one topic.
const (
	rawClaim = `with found as materialized (
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
	rawAck = `update outbox.outbox_events
		set status = 'delivered', locked_by = null, locked_until = null, updated_at = now()
		where id = any ($1::uuid[]) and locked_by = $2`
	rawDelete = `delete from outbox.outbox_events where id = any ($1::uuid[]) and locked_by = $2`
)

// rawRow is a claimed row.
type rawRow struct {
	id       pgtype.UUID
	attempts int32
	due      time.Time
	payload  []byte
}

// rawWork is the yardstick: one loop that claims on one connection, and one that writes back on
// another while the next claim runs. It looks again after j.Poll when nothing is due.
func rawWork(ctx context.Context, j job) error {
	config, err := pgx.ParseConfig(j.DSN)
	if err != nil {
		return err
	}
	for name, value := range map[string]string{
		"synchronous_commit": "off", "plan_cache_mode": "force_generic_plan", "jit": "off",
		"enable_seqscan": "off", "enable_bitmapscan": "off",
	} {
		config.RuntimeParams[name] = value
	}
	claims, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer claims.Close(ctx)
	acks, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer acks.Close(ctx)

	c := &counter{}
	self := pgtype.UUID{Bytes: uuid.New(), Valid: true}
	return c.obey(func(stop <-chan struct{}) error {
		batches := make(chan []rawRow, 1)
		failed := make(chan error, 1)
		go func() { failed <- rawAcks(ctx, acks, c, j.Delete, self, batches) }()
		err := rawClaims(ctx, claims, c, j, self, batches, stop)
		close(batches)
		if ackErr := <-failed; err == nil {
			err = ackErr
		}
		return err
	})
}

func rawClaims(ctx context.Context, conn *pgx.Conn, c *counter, j job, self pgtype.UUID, batches chan<- []rawRow, stop <-chan struct{}) error {
	var floor rawRow
	floor.id.Valid = true
	full := time.Now() // when a claim last began at the front: rows may become due below the floor
	for {
		rows, err := conn.Query(ctx, rawClaim, namespace, topic, floor.due, floor.id, j.Batch, self)
		if err != nil {
			return err
		}
		batch, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (row rawRow, err error) {
			err = r.Scan(&row.id, &row.attempts, &row.due, &row.payload)
			return row, err
		})
		if err != nil {
			return err
		}
		for _, row := range batch {
			if j.Stamp {
				n, err := number(row.payload)
				if err != nil {
					return err
				}
				c.stamp(n)
			}
			if at := row.due.Compare(floor.due); at > 0 || at == 0 && bytes.Compare(row.id.Bytes[:], floor.id.Bytes[:]) > 0 {
				floor = row
			}
		}
		if len(batch) < j.Batch || time.Since(full) > time.Second {
			floor, full = rawRow{id: pgtype.UUID{Valid: true}}, time.Now()
		}
		if len(batch) > 0 {
			batches <- batch
		}
		wait := j.Poll
		if len(batch) == j.Batch {
			wait = 0
		}
		select {
		case <-stop:
			return nil
		case <-time.After(wait):
		}
	}
}

func rawAcks(ctx context.Context, conn *pgx.Conn, c *counter, remove bool, self pgtype.UUID, batches <-chan []rawRow) error {
	sql := rawAck
	if remove {
		sql = rawDelete
	}
	var failed error
	for batch := range batches {
		if failed != nil {
			continue // drain, so that the claims end
		}
		ids := make([]pgtype.UUID, len(batch))
		for i, row := range batch {
			ids[i] = row.id
		}
		tag, err := conn.Exec(ctx, sql, ids, self)
		failed = err
		c.done(tag.RowsAffected(), 0)
	}
	return failed
}
