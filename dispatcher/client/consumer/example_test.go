package consumer_test

import (
	"context"
	"database/sql"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-operator/outbox-operator/dispatcher/client/consumer"
)

type order struct {
	ID       string `json:"id"`
	Cents    int    `json:"cents"`
	Currency string `json:"currency"`
}

// charge stands for a payment provider that does a thing once for each key.
func charge(context.Context, int, string) error { return nil }

// A consumer of the http sink: one handler, whatever the contentMode.
func ExampleConsumer_HTTP() {
	billing := consumer.New(consumer.Options{ID: "billing", Metrics: consumer.NewMetrics(prometheus.NewRegistry())})
	upcasters := consumer.Upcasters{"OrderPlaced": {
		1: consumer.Fields(func(f map[string]any) error { f["currency"] = "EUR"; return nil }),
	}}

	serve := func(ctx context.Context, pool *pgxpool.Pool) error {
		if err := billing.Migrate(ctx, pool); err != nil {
			return err
		}
		http.Handle("/events", billing.HTTP(pool, func(ctx context.Context, tx pgx.Tx, e *consumer.Event) error {
			if err := upcasters.Apply(e); err != nil {
				return err
			}
			var o order
			if err := e.Decode(&o); err != nil {
				return err
			}
			if err := charge(ctx, o.Cents, e.IdempotencyKey()); err != nil {
				return consumer.RetryAfter(30*time.Second, err)
			}
			_, err := tx.Exec(ctx, "insert into invoices (order_id, cents) values ($1, $2)", o.ID, o.Cents)
			return err
		}))
		return http.ListenAndServe(":8080", nil)
	}
	_ = serve
}

// A consumer of a broker, with database/sql: acknowledge the message when there is no error.
func ExampleNewSQL() {
	billing := consumer.NewSQL(consumer.Options{ID: "billing"})

	handle := func(ctx context.Context, db *sql.DB, headers map[string]string, value []byte) error {
		e, err := consumer.FromKafka(headers, value)
		if err != nil {
			return err
		}
		_, err = billing.Handle(ctx, db, e, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "insert into invoices (order_id) values ($1)", e.AggregateID)
			return err
		})
		return err
	}
	_ = handle
}

// Several events in one transaction of the service's own.
func ExampleConsumer_Record() {
	billing := consumer.New(consumer.Options{ID: "billing"})

	handleAll := func(ctx context.Context, pool *pgxpool.Pool, events []*consumer.Event) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			for _, e := range events {
				outcome, err := billing.Record(ctx, tx, e)
				if err != nil {
					return err
				}
				if outcome == consumer.AlreadyHandled {
					continue
				}
				if _, err := tx.Exec(ctx, "insert into invoices (order_id) values ($1)", e.AggregateID); err != nil {
					return err
				}
			}
			return nil
		})
	}
	_ = handleAll
}

// Records are removed once a day, when no event can come any more.
func ExampleConsumer_Sweep() {
	billing := consumer.New(consumer.Options{ID: "billing"})
	policy := consumer.Policy{Retention: 60 * 24 * time.Hour, Minimum: consumer.Financial, Replay: 60 * 24 * time.Hour}

	daily := func(ctx context.Context, pool *pgxpool.Pool) (int64, error) { return billing.Sweep(ctx, pool, policy) }
	_ = daily
}
