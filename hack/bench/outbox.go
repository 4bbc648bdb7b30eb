package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/engine"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/dispatcher/producer"
	"github.com/outbox-operator/outbox-operator/migrations"
)

const (
	namespace = "bench"
	topic     = "orders"
	hotKey    = "hot"
)

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

// load is what is inserted before a drain.
type load struct {
	events, payload int
	// keys is the number of keys; 0 gives no event a key. With hot, every second event is of one more.
	keys int
	hot  bool
}

func (l load) key(n int) string {
	switch {
	case l.keys == 0:
		return ""
	case l.hot && n%2 == 0:
		return hotKey
	case l.hot:
		n /= 2 // the others are of all the keys, too
		fallthrough
	default:
		return fmt.Sprint("key-", n*7919%l.keys)
	}
}

// outboxInsert enqueues events through the public bulk call, 500 in a transaction, over two connections.
func outboxInsert(ctx context.Context, dsn string, l load) error {
	outbox := producer.New(producer.Options{})
	size := max(1, min(500, 16<<20/l.payload))
	var next atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for range 2 {
		group.Go(func() error {
			conn, err := pgx.Connect(ctx, dsn)
			if err != nil {
				return err
			}
			defer conn.Close(ctx)
			for {
				n := int(next.Add(int64(size))) - size
				if n >= l.events {
					return nil
				}
				if err := outboxInsertBatch(ctx, conn, outbox, l, n, min(size, l.events-n)); err != nil {
					return err
				}
			}
		})
	}
	return group.Wait()
}

func outboxInsertBatch(ctx context.Context, conn *pgx.Conn, outbox *producer.Producer[producer.PGX], l load, n, size int) error {
	events := make([]producer.Event, size)
	for i := range events {
		events[i] = producer.Event{Namespace: namespace, Topic: topic, AggregateID: l.key(n + i), Payload: payload(n+i, l.payload)}
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := outbox.EnqueueBatch(ctx, tx, events)
		return err
	})
}

// outboxProduce enqueues one event in a transaction of its own, and with wake, sends a wake-up after it.
func outboxProduce(pool *pgxpool.Pool, topicOf func(n int) string, wake bool) produce {
	outbox := producer.New(producer.Options{})
	waker := producer.NewWaker(pool, producer.WakerOptions{})
	return func(ctx context.Context, n int) error {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := outbox.Enqueue(ctx, tx, producer.Event{Namespace: namespace, Topic: topicOf(n), Payload: payload(n, 200)})
			return err
		})
		if err == nil && wake {
			waker.Wake(namespace)
		}
		return err
	}
}

// outboxWork runs the dispatcher library with a handler that does nothing but count.
func outboxWork(ctx context.Context, j job) error {
	cfg, err := pgxpool.ParseConfig(j.DSN)
	if err != nil {
		return err
	}
	cfg.MinConns, cfg.MaxConns = 2, 4
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := pool.Ping(ctx); err != nil {
		return err
	}
	c := &counter{}
	config := dispatcher.Config{
		Topics: j.Topics, BatchSize: j.Batch, PollInterval: j.Poll, Logger: slog.New(slog.DiscardHandler), Observer: (*observer)(c),
	}
	if j.Key {
		config.Ordering = dispatcher.OrderingKey
	}
	destination, err := sinkOf(j, c)
	if err != nil {
		return err
	}
	store := pgstore.New(pool, pgstore.Options{Namespace: namespace, Worker: uuid.New(), DeleteDelivered: j.Delete})
	d, err := engine.New(store, destination, config)
	if err != nil {
		return err
	}
	return c.obey(func(stop <-chan struct{}) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() { <-stop; cancel() }()
		if j.Listen {
			connect := func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, j.DSN) }
			go pgstore.Listen(ctx, connect, "outbox", namespace, d.Wake, config.Logger)
		}
		return d.Run(ctx)
	})
}

// nothing is a sink whose handler does nothing, one event at a time as dispatcher.Handlers does.
type nothing struct {
	dispatcher.Handlers
	*counter
	job job
}

// Deliver looks at the events as far as the cell requests it.
func (s *nothing) Deliver(_ context.Context, batch []*dispatcher.Event) []error {
	errs := make([]error, len(batch))
	for i, e := range batch {
		if s.job.Stamp {
			var n int64
			if n, errs[i] = number(e.Payload); errs[i] == nil {
				s.stamp(n)
			}
		}
		if s.job.Key && e.AggregateID != "" {
			s.saw(e.AggregateID, e.Seq)
		}
	}
	return errs
}

// observer counts what is written back.
type observer counter

func (*observer) Claimed(string, int)                                           {}
func (*observer) Delivered(*dispatcher.Event, time.Duration, time.Duration)     {}
func (*observer) Failed(*dispatcher.Event, error, time.Duration, time.Duration) {}
func (*observer) DeadLettered(dispatcher.DeadEvent)                             {}
func (*observer) LeaseLost(int)                                                 {}
func (*observer) Refused(int)                                                   {}
func (o *observer) Acked(e *dispatcher.Event, _ time.Duration) {
	var marked int64
	if e.AggregateID != hotKey {
		marked = 1
	}
	(*counter)(o).done(1, marked)
}
