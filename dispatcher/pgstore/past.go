package pgstore

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// Past says which rows [Store.Past] reads.
type Past struct {
	// Topics are those of the rows. None means all of the namespace.
	Topics []string
	// Since is how long ago a row was created, at most. 0 means any time.
	Since time.Duration
	// Last is the most rows, at least 1.
	Last int
}

// PastRow is a row as it stands.
type PastRow struct {
	// Event is what a delivery would be given. Its attempt and its lease number are those of the last claim.
	Event *dispatcher.Event
	// Status is pending, processing, delivered or dead, and Reason says why it is dead.
	Status string
	Reason dispatcher.DeadReason
	// Unreadable says why the row cannot be decoded: such an event is dead as a poison message.
	Unreadable error
}

// Looked is what [Store.Past] looked at.
type Looked struct {
	// Rows are all that were looked at, also those of other topics and namespaces.
	Rows int
	// All is true unless it ended early: no more than 100,000 rows are looked at, and 10 more for each of Last.
	All bool
}

const (
	// A look reads the ids of so many rows, and of those that are wanted so many at once, or so many bytes.
	pastLook, pastRows, pastBytes = 1000, 100, 4 << 20
	// minReads and readsEach bound the rows that are looked at: so many, and so many for each that is requested.
	minReads, readsEach = 100_000, 10
	// pastTimeout bounds each statement, in milliseconds as text.
	pastTimeout = "10000"
	// ahead is how far producers' clocks may be ahead of the database's.
	ahead = time.Hour
)

// Past calls do with rows of any status, newest first, a few at a time, until it has called it with all that are
// requested. It only reads: each page in a READ ONLY transaction of its own, and locks nothing. A page holds at
// most 100 rows and 4 MiB, or one row that is larger. do keeps no snapshot open.
//
// Newest is by id: ids of version 7 rise with the time of the producer's clock, and the primary key is the only
// index that delivered rows are in. Rows with other ids come after those, in the order of their ids. Which rows
// there are is a matter of retention: a row that was removed is not seen. The error is do's or the database's.
func (s *Store) Past(ctx context.Context, p Past, do func([]PastRow) error) (Looked, error) {
	var now time.Time
	if err := s.pool.QueryRow(ctx, "select now()").Scan(&now); err != nil {
		return Looked{}, s.wrap("read past rows", err)
	}
	r := &pastReader{store: s, past: p, left: p.Last, looks: minReads + readsEach*p.Last, do: do}
	future := firstID(now.Add(ahead))
	oldest := uuid.Nil
	if p.Since > 0 {
		since := now.Add(-p.Since)
		r.since, oldest = &since, firstID(since.Add(-ahead))
	}
	for _, ids := range [][2]uuid.UUID{{future, oldest}, {uuid.Max, future}} {
		if err := r.read(ctx, ids[0], ids[1]); err != nil {
			return r.looked, err
		}
	}
	r.looked.All = r.left == 0 || r.looked.Rows < r.looks
	return r.looked, nil
}

// firstID is the least id of version 7 of a time.
func firstID(t time.Time) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[:], uint64(max(0, t.UnixMilli()))<<16)
	return id
}

// pastReader reads down the primary key.
type pastReader struct {
	store       *Store
	past        Past
	since       *time.Time
	left, looks int // rows to hand over, and rows to look at
	looked      Looked
	do          func([]PastRow) error
}

// pastID is a row that was looked at.
type pastID struct {
	id     uuid.UUID
	wanted bool
	size   int
}

// read hands over the rows with ids below from and not below to.
func (r *pastReader) read(ctx context.Context, from, to uuid.UUID) error {
	topics := r.past.Topics
	if len(topics) == 0 {
		topics = nil // null
	}
	for r.left > 0 {
		var seen []pastID
		args := []any{r.store.namespace, topics, r.since, from, to, min(pastLook, r.looks-r.looked.Rows)}
		err := r.store.readOnly(ctx, r.store.sql["past"], args, func(rows pgx.Rows) (err error) {
			seen, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (p pastID, err error) {
				return p, row.Scan(&p.id, &p.wanted, &p.size)
			})
			return err
		})
		if err != nil {
			return r.store.wrap("read past rows", err)
		}
		r.looked.Rows += len(seen)
		if err := r.hand(ctx, seen); err != nil || len(seen) < pastLook {
			return err
		}
		from = seen[len(seen)-1].id
	}
	return nil
}

// hand hands those over that are wanted, in pages.
func (r *pastReader) hand(ctx context.Context, seen []pastID) error {
	var page []pgtype.UUID
	bytes := 0
	flush := func() error {
		if len(page) == 0 {
			return nil
		}
		rows, err := r.store.pastRows(ctx, page)
		page, bytes = page[:0], 0
		if err != nil {
			return err
		}
		return r.do(rows)
	}
	for _, p := range seen {
		if !p.wanted || r.left == 0 {
			continue
		}
		if len(page) == pastRows || bytes+p.size > pastBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		page, bytes = append(page, pgUUID(p.id)), bytes+p.size
		r.left--
	}
	return flush()
}

// pastRows reads rows by their ids. One that is gone meanwhile is left out.
func (s *Store) pastRows(ctx context.Context, ids []pgtype.UUID) (page []PastRow, err error) {
	d := newDecoder(s.namespace, claiming{})
	err = s.readOnly(ctx, s.sql["past_rows"], []any{ids}, func(rows pgx.Rows) error {
		var rec record
		for rows.Next() {
			if err := rec.reader(rows.FieldDescriptions())(rows); err != nil {
				rows.Close()
				return err
			}
			e, unreadable := d.event(&rec)
			page = append(page, PastRow{e, string(rows.RawValues()[columns]), dispatcher.DeadReason(rec.reason), unreadable})
		}
		return rows.Err()
	})
	if err != nil {
		return nil, s.wrap("read past rows", err)
	}
	return page, nil
}

// readOnly runs one statement in a READ ONLY transaction, for pastTimeout at most.
func (s *Store) readOnly(ctx context.Context, sql string, args []any, read func(pgx.Rows) error) error {
	return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		var batch pgx.Batch
		batch.Queue(durable+", set_config('statement_timeout', $1::text, true)", pastTimeout)
		batch.Queue(sql, args...).Query(read)
		return tx.SendBatch(ctx, &batch).Close()
	})
}
