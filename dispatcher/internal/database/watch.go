package database

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// watch looks at how statements end, and makes the pool reconnect where that helps. The statement
// that finds out fails; whoever sent it tries again, as for any other failure.
//
// A server that has become one that only reads is of no use. And when a connection breaks, or
// there is no response on it, the others lead to the same server: each would have to find out for
// itself, and a server that is frozen takes seconds each time.
type watch struct {
	pooled atomic.Bool // there is a pooler between us and the server
	reset  func()      // makes the pool reconnect
}

// outdated marks a connection, in its custom data, that is not to be used.
const outdated = "outdated"

// configure makes a connection use prepared statements where it may. They are worth having: without
// them PostgreSQL plans each claim and ack again, which costs 2 to 3 ms for the pair. But a PgBouncer
// in transaction mode moves a client from one server session to another, and from its version 1.21 on
// alone it may take the statements along. So behind a pooler there are none.
func (w *watch) configure(c *pgx.ConnConfig) {
	c.Tracer = w
	if c.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		return // the connection string sets another mode
	}
	if w.pooled.Load() {
		c.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		return
	}
	validate := c.ValidateConnect
	c.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		err := validate(ctx, conn)
		if conn.CustomData()[pooled] != nil {
			w.pooled.Store(true)
			conn.CustomData()[outdated] = true // its mode cannot be changed any more
		}
		return err
	}
}

// usable is called before a connection is taken from the pool, which closes it if it is not.
func (w *watch) usable(_ context.Context, conn *pgx.Conn) (bool, error) {
	return conn.PgConn().CustomData()[outdated] == nil, nil
}

func (w *watch) saw(conn *pgx.Conn, err error) {
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	var pg *pgconn.PgError
	if conn.IsClosed() || errors.As(err, &pg) && pg.Code == readOnly {
		w.reset()
	}
}

var (
	_ pgx.QueryTracer = (*watch)(nil)
	_ pgx.BatchTracer = (*watch)(nil)
)

// TraceQueryStart does nothing.
func (w *watch) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// TraceQueryEnd sees how a statement ended.
func (w *watch) TraceQueryEnd(_ context.Context, c *pgx.Conn, d pgx.TraceQueryEndData) {
	w.saw(c, d.Err)
}

// TraceBatchStart does nothing.
func (w *watch) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

// TraceBatchQuery sees how a statement of a batch ended.
func (w *watch) TraceBatchQuery(_ context.Context, c *pgx.Conn, d pgx.TraceBatchQueryData) {
	w.saw(c, d.Err)
}

// TraceBatchEnd sees how a batch ended.
func (w *watch) TraceBatchEnd(_ context.Context, c *pgx.Conn, d pgx.TraceBatchEndData) {
	w.saw(c, d.Err)
}
