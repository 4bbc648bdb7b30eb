package producer_test

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher/client/producer"
)

// An order and its event are written in one transaction: both commit, or neither does.
func ExampleNew() {
	outbox := producer.New(producer.Options{}) // one for the whole service

	placeOrder := func(ctx context.Context, pool *pgxpool.Pool, orderID string, cents int) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "insert into orders (id, total_cents) values ($1, $2)", orderID, cents); err != nil {
				return err
			}
			_, err := outbox.Enqueue(ctx, tx, producer.Event{
				Namespace: "shop", Topic: "orders", EventType: "OrderPlaced",
				AggregateType: "order", AggregateID: orderID,
				Payload:   map[string]any{"order": orderID, "total_cents": cents},
				DedupeKey: "placed-" + orderID, // a repeated request adds no second event
			})
			return err
		})
	}
	_ = placeOrder
}

// An order is cancelled, and its event with it, unless it was sent.
func ExampleProducer_Withdraw() {
	outbox := producer.New(producer.Options{Namespace: "shop"})

	cancelOrder := func(ctx context.Context, pool *pgxpool.Pool, orderID string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "update orders set cancelled = true where id = $1", orderID); err != nil {
				return err
			}
			placed, err := outbox.Withdraw(ctx, tx, producer.Named{Topic: "orders", DedupeKey: "placed-" + orderID})
			if err != nil || placed.Outcome == producer.Withdrawn {
				return err // it is never sent
			}
			_, err = outbox.Enqueue(ctx, tx, producer.Event{
				Topic: "orders", EventType: "OrderCancelled", AggregateType: "order", AggregateID: orderID,
				Payload: map[string]any{"order": orderID},
			})
			return err
		})
	}
	_ = cancelOrder
}

// The same with database/sql, and many events in one round trip.
func ExampleNewSQL() {
	outbox := producer.NewSQL(producer.Options{})

	ship := func(ctx context.Context, tx *sql.Tx, orderIDs []string) error {
		events := make([]producer.Event, len(orderIDs))
		for i, id := range orderIDs {
			events[i] = producer.Event{Namespace: "shop", Topic: "shipments", AggregateID: id, Payload: map[string]string{"order": id}}
		}
		_, err := outbox.EnqueueBatch(ctx, tx, events)
		return err
	}
	_ = ship
}
