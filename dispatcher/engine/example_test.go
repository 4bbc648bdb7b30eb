package engine_test

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
)

// Delivery alone, for a service that keeps retention, limits over processes and metrics itself. Package outbox has all of it.
func ExampleNew() {
	deliver := func(ctx context.Context, pool *pgxpool.Pool, handle func(context.Context, *dispatcher.Event) error) error {
		store := pgstore.New(pool, pgstore.Options{Namespace: "shop"})
		d, err := engine.New(store, dispatcher.Handlers{"orders": handle}, dispatcher.Config{Topics: []string{"orders"}})
		if err != nil {
			return err
		}
		return d.Run(ctx)
	}
	_ = deliver
}
