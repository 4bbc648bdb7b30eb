package database

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func newPool(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := Pool(t.Context(), config.Database{DSN: dsn}, "orders")
	check(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// preparedStatements counts those of the session, with a statement that would be one of them.
func preparedStatements(t *testing.T, c interface {
	Query(context.Context, string, ...any) (pgx.Rows, error)
}) int {
	t.Helper()
	rows, err := c.Query(t.Context(), "select count(*) from pg_prepared_statements where $1::int = 1", 1)
	check(t, err)
	n, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
	check(t, err)
	return n
}

// Prepared statements spare planning. Behind a PgBouncer in transaction mode there are none, and no
// statement fails before that is known, however many processes have used its sessions before.
func TestPreparedStatements(t *testing.T) {
	t.Parallel()
	srv := pgtest.Server(t)
	if n := preparedStatements(t, newPool(t, srv.DSN("postgres"))); n != 1 {
		t.Errorf("%d prepared statements, want one", n)
	}
	bouncer := pgtest.Bouncer(t, srv)
	for range 2 { // two processes
		pool := newPool(t, bouncer.DSN("postgres"))
		held, err := pool.Begin(t.Context()) // holds a server session, so that the others get another one
		check(t, err)
		t.Cleanup(func() { _ = held.Rollback(context.Background()) }) // when the test fails before it ends it
		for _, c := range []interface {
			Query(context.Context, string, ...any) (pgx.Rows, error)
		}{held, pool, held, pool} {
			if n := preparedStatements(t, c); n != 0 {
				t.Errorf("%d prepared statements behind PgBouncer", n)
			}
		}
		check(t, held.Rollback(t.Context()))
	}
}

// One connection that breaks takes the others with it: they lead to the same server.
func TestPoolReconnectsWhenOneConnectionBreaks(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dsn := pgtest.Empty(t)
	pool, admin := newPool(t, dsn), pgtest.Pool(t, dsn)
	var conns []*pgxpool.Conn
	for range poolSize {
		conn, err := pool.Acquire(ctx)
		check(t, err)
		conns = append(conns, conn)
	}
	broken := conns[0]
	for _, conn := range conns[1:] {
		conn.Release()
	}
	_, err := admin.Exec(ctx, "select pg_terminate_backend($1)", broken.Conn().PgConn().PID())
	check(t, err)
	if _, err := broken.Exec(ctx, "select 1"); err == nil {
		t.Error("a terminated connection works")
	}
	broken.Release()
	wantConns(t, pool, 0)

	conn, err := pool.Acquire(ctx)
	check(t, err)
	idle, err := pool.Acquire(ctx)
	check(t, err)
	idle.Release()
	_, err = conn.Exec(ctx, "begin read only; create table refused ()", pgx.QueryExecModeSimpleProtocol)
	if reason, message := Classify(err); reason != ConnectionFailed || err == nil {
		t.Errorf("a transaction that only reads: %s, %s", reason, message)
	}
	conn.Release()
	wantConns(t, pool, 0)
}

func wantConns(t *testing.T, pool *pgxpool.Pool, want int32) {
	t.Helper()
	pgtest.Eventually(t, fmt.Sprintf("the pool has %d connections", want), time.Minute, func() bool { return pool.Stat().TotalConns() == want })
}
