package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/client/producer"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/migrations"
)

const (
	namespace = "bench"
	topic     = "orders"
)

// ours is the dispatcher as a library, all default.
func ours() system {
	return system{
		name: "ours, default", settings: "all default: batchSize 2000, polling, delivered rows are kept", job: job{System: "ours"},
		setup: outboxSetup, insert: outboxInsert,
		produce: func(pool *pgxpool.Pool) (produce, error) { return enqueueOne(pool), nil },
		left:    `select exists (select from outbox.outbox_events where live)`,
		kept:    `select count(*) from outbox.outbox_events where status = 'delivered'`,
	}
}

// outboxSetup makes our schema.
func outboxSetup(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = migrations.Up(ctx, conn, "outbox")
	return err
}

// outboxInsert enqueues events through the public bulk call, 500 in a transaction, over two connections.
func outboxInsert(ctx context.Context, dsn string, l load) error {
	outbox := producer.New(producer.Options{})
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	return inParts(ctx, l.events, 500, func(ctx context.Context, from, to int) error {
		var events []producer.Event
		for n := from; n < to; n++ {
			events = append(events, producer.Event{Namespace: namespace, Topic: topic, AggregateID: l.key(n), Payload: payload(n)})
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := outbox.EnqueueBatch(ctx, tx, events)
			return err
		})
	})
}

// enqueueOne enqueues one event in a transaction of its own.
func enqueueOne(pool *pgxpool.Pool) produce {
	outbox := producer.New(producer.Options{})
	return func(ctx context.Context, n int) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := outbox.Enqueue(ctx, tx, producer.Event{Namespace: namespace, Topic: topic, Payload: payload(n)})
			return err
		})
	}
}

// produceAndWake sends a wake-up after each commit.
func produceAndWake(pool *pgxpool.Pool) (produce, error) {
	enqueue, waker := enqueueOne(pool), producer.NewWaker(pool, producer.WakerOptions{})
	return func(ctx context.Context, n int) error {
		err := enqueue(ctx, n)
		if err == nil {
			waker.Wake(namespace)
		}
		return err
	}, nil
}

// oursWork runs the dispatcher with a handler that does nothing but count.
func oursWork(ctx context.Context, c *counter) (func(context.Context) error, error) {
	cfg, err := pgxpool.ParseConfig(c.DSN)
	if err != nil {
		return nil, err
	}
	cfg.MinConns, cfg.MaxConns = 2, 4 // as our binary
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(ctx); err != nil {
		return nil, err
	}
	config := dispatcher.Config{BatchSize: c.Batch, Logger: slog.New(slog.DiscardHandler), Observer: (*observer)(c)}
	if c.Key {
		config.Ordering = dispatcher.OrderingKey
	}
	store := pgstore.New(pool, pgstore.Options{Namespace: namespace, Worker: uuid.New(), DeleteDelivered: c.Delete})
	d, err := engine.New(store, &nothing{counter: c}, config)
	return func(ctx context.Context) error {
		defer pool.Close()
		if c.Listen {
			connect := func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, c.DSN) }
			go pgstore.Listen(ctx, connect, "outbox", namespace, d.Wake, config.Logger)
		}
		return d.Run(ctx)
	}, err
}

// nothing is a sink whose handler does nothing, one event at a time as dispatcher.Handlers does.
type nothing struct {
	dispatcher.Handlers
	*counter
}

// Deliver looks at the events as far as the cell requests it.
func (s *nothing) Deliver(_ context.Context, batch []*dispatcher.Event) []error {
	errs := make([]error, len(batch))
	for i, e := range batch {
		errs[i] = s.saw(e.Payload, e.AggregateID, e.Seq)
	}
	return errs
}

// observer counts what is written back.
type observer counter

func (*observer) Claimed(string, int)                                           {}
func (*observer) Delivered(*dispatcher.Event, time.Duration, time.Duration)     {}
func (*observer) Failed(*dispatcher.Event, error, time.Duration, time.Duration) {}
func (*observer) Expired(string, int)                                           {}
func (*observer) DeadLettered(dispatcher.DeadEvent)                             {}
func (*observer) LeaseLost(int)                                                 {}
func (*observer) Refused(int)                                                   {}
func (*observer) ClaimRefused()                                                 {}
func (o *observer) Acked(e *dispatcher.Event, _ time.Duration) {
	others := 1
	if e.AggregateID == hotKey {
		others = 0
	}
	(*counter)(o).done(1, others)
}
