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
	// Topics of the rows. None means all of the namespace.
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
	// Status is pending, processing, delivered, dead, withdrawn or expired, and Reason says why it is dead.
	Status string
	Reason dispatcher.DeadReason
	// Unreadable says why the row cannot be decoded: such an event is dead as a poison message.
	Unreadable error
}

// PastRead is what [Store.Past] read.
type PastRead struct {
	// Rows counts the rows that were read, those of other topics and namespaces included.
	Rows int
	// All is false when it ended early: it reads at most 100,000 rows, and 10 more for each of Last.
	All bool
}

const (
	// pastLook is how many ids a query reads. Rows that are wanted are read whole, pastRows or pastBytes at once.
	pastLook, pastRows, pastBytes = 1000, 100, 4 << 20
	// minReads and readsEach bound the rows that are read: minReads, and readsEach for each row that is requested.
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
func (s *Store) Past(ctx context.Context, p Past, do func([]PastRow) error) (looked PastRead, err error) {
	var now time.Time
	if err := s.pool.QueryRow(ctx, "select now()").Scan(&now); err != nil {
		return looked, s.wrap("read past rows", err)
	}
	future, oldest := firstID(now.Add(ahead)), uuid.Nil
	var since *time.Time
	if p.Since > 0 {
		since = new(now.Add(-p.Since))
		oldest = firstID(since.Add(-ahead))
	}
	topics := p.Topics
	if len(topics) == 0 {
		topics = nil // null
	}
	left, most := p.Last, minReads+readsEach*p.Last
	for _, ids := range [][2]uuid.UUID{{future, oldest}, {uuid.Max, future}} { // from below the first down to the second
		for more := true; more && left > 0; {
			seen, err := s.pastIDs(ctx, s.opts.Namespace, topics, since, ids[0], ids[1], min(pastLook, most-looked.Rows))
			if err != nil {
				return looked, err
			}
			looked.Rows += len(seen)
			for _, page := range pages(seen, &left) {
				rows, err := s.pastRows(ctx, page)
				if err == nil {
					err = do(rows)
				}
				if err != nil {
					return looked, err
				}
			}
			if more = len(seen) == pastLook; more {
				ids[0] = seen[len(seen)-1].ID
			}
		}
	}
	looked.All = left == 0 || looked.Rows < most
	return looked, nil
}

// firstID is the least id of version 7 of a time.
func firstID(t time.Time) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[:], uint64(max(0, t.UnixMilli()))<<16)
	return id
}

// pastID is a row that was looked at.
type pastID struct {
	ID     uuid.UUID
	Wanted bool
	Size   int
}

// pastIDs reads the ids of rows, newest first.
func (s *Store) pastIDs(ctx context.Context, args ...any) (found []pastID, err error) {
	err = s.readOnly(ctx, s.sql["past"], args, func(rows pgx.Rows) (err error) {
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[pastID])
		return err
	})
	return found, err
}

// pages divides those that are wanted, up to left of them.
func pages(seen []pastID, left *int) (all [][]pgtype.UUID) {
	bytes := 0
	for _, p := range seen {
		if !p.Wanted || *left == 0 {
			continue
		}
		if n := len(all); n == 0 || len(all[n-1]) == pastRows || bytes+p.Size > pastBytes {
			all, bytes = append(all, nil), 0
		}
		last := &all[len(all)-1]
		*last, bytes = append(*last, pgUUID(p.ID)), bytes+p.Size
		*left--
	}
	return all
}

// pastRows reads rows by their ids. One that is gone meanwhile is left out.
func (s *Store) pastRows(ctx context.Context, ids []pgtype.UUID) (page []PastRow, err error) {
	d := newDecoder(s.opts.Namespace, claiming{})
	err = s.readOnly(ctx, s.sql["past_rows"], []any{ids}, func(rows pgx.Rows) error {
		var rec record
		for rows.Next() {
			if err := rec.reader(rows.FieldDescriptions())(rows); err != nil {
				rows.Close()
				return err
			}
			e, unreadable := d.event(&rec)
			page = append(page, PastRow{e, string(rows.RawValues()[columns]), dispatcher.DeadReason(rec.ended), unreadable})
		}
		return rows.Err()
	})
	return page, err
}

// readOnly runs one statement in a READ ONLY transaction, for pastTimeout at most.
func (s *Store) readOnly(ctx context.Context, sql string, args []any, read func(pgx.Rows) error) error {
	return s.wrap("read past rows", pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		var batch pgx.Batch
		batch.Queue(durable+", set_config('statement_timeout', $1::text, true)", pastTimeout)
		batch.Queue(sql, args...).Query(read)
		return tx.SendBatch(ctx, &batch).Close()
	}))
}
