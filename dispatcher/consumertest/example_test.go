package consumertest_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher/client/consumer"
	"github.com/outbox-operator/outbox-operator/dispatcher/consumertest"
)

// onOrder stands for the code of your service that takes an event.
func onOrder(context.Context, *pgxpool.Pool, *consumer.Event) error { return nil }

// A test of your service: it fails with the rule that the consumer breaks.
func ExampleVerify() {
	test := func(t *testing.T, pool *pgxpool.Pool) {
		exec := func(ctx context.Context, statement string) error { _, err := pool.Exec(ctx, statement); return err }
		consumertest.Verify(t, consumertest.Consumer{
			Event: func() *consumer.Event {
				return &consumer.Event{EventType: "OrderPlaced", AggregateID: "o-7", Payload: []byte(`{"order": 7, "currency": "EUR"}`)}
			},
			Deliver: func(ctx context.Context, e *consumer.Event) error { return onOrder(ctx, pool, e) },
			Effects: func(ctx context.Context, id uuid.UUID) (n int, err error) {
				err = pool.QueryRow(ctx, "select count(*) from invoices where tracking_id = $1", id).Scan(&n)
				return n, err
			},
			Optional: []string{"currency"},
			FailEffect: func(ctx context.Context, fails bool) error {
				if fails {
					return exec(ctx, "alter table invoices rename to invoices_hidden")
				}
				return exec(ctx, "alter table invoices_hidden rename to invoices")
			},
		})
	}
	_ = test
}
