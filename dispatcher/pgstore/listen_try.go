package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// TryListen returns an error that says why [Listen] would receive no wake-up: it cannot connect, may not listen, or a
// pooler is in between.
func TryListen(ctx context.Context, connect func(context.Context) (*pgx.Conn, error), schema string) error {
	conn, err := connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	l := listener{connect: connect, schema: schema}
	return l.subscribe(ctx, conn)
}
