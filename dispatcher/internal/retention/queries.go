package retention

import (
	"context"
	"embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

//go:embed queries.sql
var files embed.FS

// Settings of a transaction. The statements have one good plan, and the planner must not think otherwise of a
// small table. A statement that waits for a lock of the table, as of ALTER TABLE, gives up soon: others queue behind it.
const (
	settings = `select set_config('statement_timeout', $1::text, true), set_config('lock_timeout', '500', true), set_config('jit', 'off', true),
		set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)`
	// relaxed transactions do not wait for the disk: what a crash of the database undoes is removed again.
	relaxed = settings + `, set_config('synchronous_commit', 'off', true)`
)

// one runs a statement in a transaction of its own and one round trip, and reads its one row. It reports
// whether there is a row.
func (s *Sweeper) one(ctx context.Context, sql string, args []any, into ...any) (found bool, err error) {
	var batch pgx.Batch
	batch.Queue(relaxed, timeout())
	batch.Queue(sql, args...).QueryRow(func(row pgx.Row) error {
		err := row.Scan(into...)
		found = err == nil
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return found, s.wrap(s.pool.SendBatch(ctx, &batch).Close())
}

// write runs a statement that returns nothing.
func (s *Sweeper) write(ctx context.Context, sql string, args ...any) error {
	var batch pgx.Batch
	batch.Queue(relaxed, timeout())
	batch.Queue(sql, args...)
	return s.wrap(s.pool.SendBatch(ctx, &batch).Close())
}

func timeout() string { return fmt.Sprint(statementTimeout.Milliseconds()) }

// wrap adds to an error what failed, and what to do where that is known.
func (s *Sweeper) wrap(err error) error {
	if err == nil {
		return nil
	}
	remedy := ""
	switch sqlState(err) {
	case "42501":
		remedy = `; have the owner run what "dispatcher migrate grants" prints`
	case "42P01", "3F000", "42703", "42883":
		remedy = `; run "dispatcher migrate up"`
	}
	return fmt.Errorf("retention in schema %q: %w%s", s.opts.Schema, err, remedy)
}

// sqlState returns the code of a PostgreSQL error, or "".
func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
