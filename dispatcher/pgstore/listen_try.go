package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// TryListen says why [Listen] would not hear a wake-up; nil when it would.
func TryListen(ctx context.Context, connect func(context.Context) (*pgx.Conn, error), schema string) error {
	conn, err := connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	l := listener{connect: connect, schema: schema}
	return l.subscribe(ctx, conn)
}
