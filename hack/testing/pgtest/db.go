package pgtest

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DB is the database of a test.
type DB struct {
	testing.TB
	*pgxpool.Pool
}

// Open connects to a database as [Pool] does.
func Open(t testing.TB, dsn string) DB {
	t.Helper()
	return DB{t, Pool(t, dsn)}
}

// Exec runs a statement. db is a [DB], or embeds a test and a pool or connection itself.
func Exec(db interface {
	testing.TB
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, sql string, args ...any) {
	db.Helper()
	if _, err := db.Exec(db.Context(), sql, args...); err != nil {
		db.Fatalf("%.200s: %v", sql, err)
	}
}

// Value returns the one value that a query selects.
func Value[T any](db interface {
	testing.TB
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, sql string, args ...any) (value T) {
	db.Helper()
	if err := db.QueryRow(db.Context(), sql, args...).Scan(&value); err != nil {
		db.Fatalf("%.200s: %v", sql, err)
	}
	return value
}

// Want marks the test as failed, and lets it continue, unless a query selects the value that is wanted. Of the text's verbs the
// first one is what the query selects, and the second one what is wanted.
func Want[T comparable](db interface {
	testing.TB
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, want T, text, sql string, args ...any) {
	db.Helper()
	if got := Value[T](db, sql, args...); got != want {
		db.Errorf(text, []any{got, want}[:strings.Count(text, "%")]...)
	}
}
