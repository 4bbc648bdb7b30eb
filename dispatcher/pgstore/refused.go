package pgstore

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-operator/outbox-operator/dispatcher"
)

// refusedRow returns the row that statements of one topic and row lease first, if the database refuses to lease it, and nil if
// it does not. It selects as they do, which locks the row and does no more, and leases that very row: another
// worker may have had it locked a moment ago, when they met the next one. Then it rolls back.
func (s *Store) refusedRow(ctx context.Context, c claiming, statements ...statement) (*dispatcher.RefusedRow, error) {
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, s.claims, frozenAfter(c.Lease), c.skip); err != nil {
		return nil, err
	}
	row, at := dispatcher.RefusedRow{Topic: c.topics[0]}, pgtype.Timestamptz{}
	for _, st := range statements {
		if err = tx.QueryRow(ctx, st.look, st.args...).Scan(&row.ID, &at); !errors.Is(err, pgx.ErrNoRows) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	before := position{timeOf(micros(at)), row.ID}
	binary.BigEndian.PutUint64(before.id[8:], binary.BigEndian.Uint64(before.id[8:])-1)
	it := s.statement("claim", c, []position{before})
	_, err = tx.Exec(ctx, it.sql, it.args...)
	if row.Err = s.wrap("claim", err); !dispatcher.IsRefused(row.Err) {
		return nil, row.Err
	}
	return &row, nil
}

// RefusedRows returns of each topic the first row that is due, if the database refuses to lease it. It leases the rows, and
// takes that back before others see it. It fails when the store cannot be reached.
func (s *Store) RefusedRows(ctx context.Context, topics []string) (all []*dispatcher.RefusedRow, err error) {
	if topics, err = s.topics(ctx, topics, false); err != nil {
		return nil, err
	}
	for _, topic := range topics {
		shares := []dispatcher.Share{{Topic: topic, Limit: 1}}
		c := newClaiming(dispatcher.ClaimRequest{Shares: shares, Lease: time.Minute, MaxAttempts: math.MaxInt32})
		row, err := s.refusedRow(ctx, c, s.statement("claim", c, make([]position, 1)))
		if row != nil {
			all = append(all, row)
		} else if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return all, s.wrap("try to lease the first row", err)
		}
	}
	return all, nil
}
