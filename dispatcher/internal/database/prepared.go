package database

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// prepared turns prepared statements off when there are none behind the connection: a PgBouncer in
// transaction mode (before version 1.21, or with max_prepared_statements = 0) moves a client from
// one server session to another. They are worth having: without them PostgreSQL plans each claim
// and ack again, which costs 2 to 3 ms for the pair.
//
// The statement that finds out fails; whoever sent it tries again, as for any other failure.
type prepared struct {
	off   atomic.Bool
	reset func() // makes the pool connect anew
}

// configure makes a connection use what works.
func (p *prepared) configure(c *pgx.ConnConfig) {
	if c.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		return // the connection string asks for another mode
	}
	if p.off.Load() {
		c.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		return
	}
	c.Tracer = p
}

func (p *prepared) saw(err error) {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "26000" && pg.Code != "42P05" {
		return // not: no such prepared statement, or one of that name already
	}
	if p.off.CompareAndSwap(false, true) {
		p.reset()
	}
}

var (
	_ pgx.QueryTracer   = (*prepared)(nil)
	_ pgx.BatchTracer   = (*prepared)(nil)
	_ pgx.PrepareTracer = (*prepared)(nil)
)

func (p *prepared) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (p *prepared) TraceQueryEnd(_ context.Context, _ *pgx.Conn, d pgx.TraceQueryEndData) {
	p.saw(d.Err)
}

func (p *prepared) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (p *prepared) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	p.saw(d.Err)
}

func (p *prepared) TraceBatchEnd(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchEndData) {
	p.saw(d.Err)
}

func (p *prepared) TracePrepareStart(ctx context.Context, _ *pgx.Conn, _ pgx.TracePrepareStartData) context.Context {
	return ctx
}

func (p *prepared) TracePrepareEnd(_ context.Context, _ *pgx.Conn, d pgx.TracePrepareEndData) {
	p.saw(d.Err)
}
