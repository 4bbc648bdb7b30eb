package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverArgs is River's job: the same JSON as our payload.
type riverArgs struct{ json.RawMessage }

// Kind implements river.JobArgs.
func (riverArgs) Kind() string { return topic }

func riverSetup(ctx context.Context, dsn string) error {
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

// riverInsert uses River's fastest bulk call, which copies.
func riverInsert(ctx context.Context, dsn string, l load) error {
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	size := max(1, min(5000, 16<<20/l.payload))
	for n := 0; n < l.events; n += size {
		params := make([]river.InsertManyParams, min(size, l.events-n))
		for i := range params {
			params[i] = river.InsertManyParams{Args: riverArgs{payload(n+i, l.payload)}}
		}
		if _, err := client.InsertManyFast(ctx, params); err != nil {
			return err
		}
	}
	return nil
}

// riverProduce inserts one job in a transaction of its own. The cooldown limits its notifications, too.
func riverProduce(pool *pgxpool.Pool, cooldown time.Duration) (produce, error) {
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: slog.New(slog.DiscardHandler), FetchCooldown: cooldown})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, n int) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := client.InsertTx(ctx, tx, riverArgs{payload(n, 200)}, nil)
			return err
		})
	}, nil
}

// riverWorker does nothing but count.
type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	*counter
	stamps bool
}

// Work implements river.Worker.
func (w *riverWorker) Work(_ context.Context, job *river.Job[riverArgs]) error {
	if w.stamps {
		n, err := number(job.EncodedArgs)
		if err != nil {
			return err
		}
		w.stamp(n)
	}
	w.done(1, 0)
	return nil
}

func riverWork(ctx context.Context, j job) error {
	pool, err := pgxpool.New(ctx, j.DSN)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := pool.Ping(ctx); err != nil {
		return err
	}
	c := &counter{}
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{counter: c, stamps: j.Stamp})
	config := &river.Config{
		Logger:  slog.New(slog.DiscardHandler),
		Workers: workers,
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}},
	}
	if j.Best {
		config.FetchCooldown = river.FetchCooldownMin
		config.Queues[river.QueueDefault] = river.QueueConfig{MaxWorkers: j.Batch}
	}
	client, err := river.NewClient(riverpgxv5.New(pool), config)
	if err != nil {
		return err
	}
	return c.obey(func(stop <-chan struct{}) error {
		if err := client.Start(ctx); err != nil {
			return err
		}
		<-stop
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		return client.Stop(ctx)
	})
}
