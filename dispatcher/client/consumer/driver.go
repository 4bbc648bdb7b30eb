package consumer

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// PGX is the part of pgx that a [Consumer] made by [New] uses: a pgxpool.Pool or a pgx.Conn.
type PGX interface {
	// Begin starts a transaction, or returns an error.
	Begin(ctx context.Context) (pgx.Tx, error)
}

// SQLDB is the part of database/sql that a [Consumer] made by [NewSQL] uses: a sql.DB or a sql.Conn.
type SQLDB interface {
	// BeginTx starts a transaction, or returns an error.
	BeginTx(ctx context.Context, options *sql.TxOptions) (*sql.Tx, error)
}

// driver is what differs between pgx and database/sql.
type driver[DB, Tx any] struct {
	// begin runs f in a transaction, which is rolled back when f fails or panics.
	begin func(ctx context.Context, db DB, f func(Tx) error) error
	// exec returns the number of rows.
	exec func(ctx context.Context, tx Tx, statement string, args ...any) (int64, error)
	// count returns the first column of the one row, a number.
	count func(ctx context.Context, tx Tx, statement string, args ...any) (int64, error)
}

var pgxDriver = driver[PGX, pgx.Tx]{
	begin: func(ctx context.Context, db PGX, f func(pgx.Tx) error) error { return pgx.BeginFunc(ctx, db, f) },
	exec: func(ctx context.Context, tx pgx.Tx, statement string, args ...any) (int64, error) {
		tag, err := tx.Exec(ctx, statement, args...)
		return tag.RowsAffected(), err
	},
	count: func(ctx context.Context, tx pgx.Tx, statement string, args ...any) (n int64, err error) {
		rows, err := tx.Query(ctx, statement, args...)
		if err != nil {
			return 0, err
		}
		defer rows.Close()
		return first(rows)
	},
}

var sqlDriver = driver[SQLDB, *sql.Tx]{
	begin: func(ctx context.Context, db SQLDB, f func(*sql.Tx) error) (err error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // after a commit it does nothing
		if err := f(tx); err != nil {
			return err
		}
		return tx.Commit()
	},
	exec: func(ctx context.Context, tx *sql.Tx, statement string, args ...any) (int64, error) {
		result, err := tx.ExecContext(ctx, statement, args...)
		if err != nil {
			return 0, err
		}
		return result.RowsAffected()
	},
	count: func(ctx context.Context, tx *sql.Tx, statement string, args ...any) (int64, error) {
		rows, err := tx.QueryContext(ctx, statement, args...)
		if err != nil {
			return 0, err
		}
		defer func() { _ = rows.Close() }() // its error is that of Err
		return first(rows)
	},
}

// first reads the number of the first column, and passes by what else the row has.
func first(rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
}) (n int64, err error) {
	if rows.Next() {
		err = rows.Scan(&n)
	}
	for rows.Next() {
	}
	return n, errors.Join(err, rows.Err())
}

// remedy says what to do about the errors that a person meets when setting things up.
func remedy(err error) string {
	switch state(err) {
	case "3F000", "42P01", "42703":
		return "; run Migrate or the statements of SQL, or correct Options.Schema"
	case "42501":
		return "; let the owner of the schema run the statements of SQL, and grant select, insert, update, delete on its tables to this login"
	case "25006":
		return "; connect to the primary"
	}
	return ""
}

// state is the error's SQLSTATE; pgx's and lib/pq's errors have one.
func state(err error) string {
	var with interface{ SQLState() string }
	if errors.As(err, &with) {
		return with.SQLState()
	}
	return ""
}

// unreachable reports that the database is unreachable, or about to be: not a fault of the event.
func unreachable(err error) bool {
	var connect *pgconn.ConnectError
	code := state(err)
	return errors.As(err, &connect) || errors.Is(err, sqldriver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) ||
		len(code) == 5 && (code[:2] == "08" || code[:2] == "53" || code[:2] == "57")
}
