package pgstore_test

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
)

// How many events wait, of all topics, where the schema is that of this version.
func ExampleStore_Depth() {
	backlog := func(ctx context.Context, pool *pgxpool.Pool) (dispatcher.Depth, error) {
		store := pgstore.New(pool, pgstore.Options{Namespace: "shop"})
		schema, err := store.Schema(ctx)
		if err != nil {
			return dispatcher.Depth{}, err
		}
		if schema.State != dispatcher.SchemaReady {
			return dispatcher.Depth{}, errors.New(schema.Message)
		}
		return store.Depth(ctx, nil)
	}
	_ = backlog
}
