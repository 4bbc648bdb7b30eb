package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/migrations"
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

// Begin begins a transaction with a statement, and rolls it back when the test ends.
func Begin(db interface {
	testing.TB
	Begin(ctx context.Context) (pgx.Tx, error)
}, sql string, args ...any) pgx.Tx {
	db.Helper()
	tx, err := db.Begin(db.Context())
	need.OK(db, err)
	db.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	need.OK(db, need.Err(tx.Exec(db.Context(), sql, args...)))
	return tx
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
	need.Want(db, want, text, Value[T](db, sql, args...))
}

// GenericPlan returns the plan that is kept for every argument of a statement, as text. settings are those that the statement
// runs with, of which $1 is the statement timeout.
func GenericPlan(db interface {
	testing.TB
	Begin(ctx context.Context) (pgx.Tx, error)
}, settings, sql, args string) string {
	db.Helper()
	tx, err := db.Begin(db.Context())
	need.OK(db, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(db.Context())) }()
	for _, statement := range []string{strings.ReplaceAll(settings, "$1", "'5000'"), `set local plan_cache_mode = force_generic_plan`, `prepare checked as ` + sql} {
		need.OK(db, need.Err(tx.Exec(db.Context(), statement)))
	}
	rows, err := tx.Query(db.Context(), `explain execute checked (`+args+`)`, pgx.QueryExecModeSimpleProtocol)
	need.OK(db, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	need.OK(db, err)
	need.OK(db, need.Err(tx.Exec(db.Context(), `deallocate checked`)))
	return strings.Join(lines, "\n")
}

// Login makes a role with the grants of a kind and no other right, dropped at cleanup, and returns the connection string of
// its login. The pool is that of the database's owner; it outlives what connects as the role.
func Login(t testing.TB, owner *pgxpool.Pool, kind migrations.Kind) string {
	t.Helper()
	role := "outbox_test_" + strings.ToLower(rand.Text())
	for _, sql := range append([]string{`create role ` + role + ` login password 'test'`}, migrations.Grants(Schema, role, kind)...) {
		if _, err := owner.Exec(t.Context(), sql); err != nil {
			t.Fatalf("pgtest: %s: %v", sql, err)
		}
	}
	DropRole(t, owner, role)
	dsn, err := url.Parse(owner.Config().ConnString())
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	dsn.User = url.UserPassword(role, "test")
	return dsn.String()
}

// DropRole drops a role, and what it owns in the pool's database, at cleanup. A session of the role may outlive its client, and
// have its locks in another order: after a deadlock the role is dropped again.
func DropRole(t testing.TB, pool *pgxpool.Pool, role string) {
	t.Helper()
	t.Cleanup(func() {
		for tries := 1; ; tries++ {
			_, err := pool.Exec(context.Background(), `drop owned by `+role+` cascade; drop role `+role)
			if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "40P01" && tries < 5 { // deadlock_detected
				continue
			}
			if err != nil {
				t.Errorf("pgtest: drop role: %v", err)
			}
			return
		}
	})
}

// Mode is how the driver sends statements, as its setting default_query_exec_mode has it.
type Mode string

// In is a connection string of which the driver sends statements in the mode.
func (m Mode) In(dsn string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		panic(err) // connection strings of this package are URLs
	}
	query := u.Query()
	query.Set("default_query_exec_mode", string(m))
	u.RawQuery = query.Encode()
	return u.String()
}

// EachMode runs a test in every mode of the driver, also in the ones for PgBouncer before 1.21.
func EachMode(t *testing.T, run func(t *testing.T, mode Mode)) {
	t.Helper()
	for _, mode := range []Mode{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(string(mode), func(t *testing.T) { run(t, mode) })
	}
}
