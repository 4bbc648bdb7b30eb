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

// riverDefault fetches at most 100 jobs each 100 ms.
func riverDefault() system {
	return system{
		name: "River, default", settings: "MaxWorkers 100; the rest default, with which it takes a thousand events a second: it drains fewer",
		slow: true, job: job{System: "river"}, setup: riverSetup, insert: riverInsert,
		produce: func(pool *pgxpool.Pool) (produce, error) { return riverProduce(pool, river.FetchCooldownDefault) },
		left:    `select exists (select from river_job where state in ('available', 'running', 'retryable', 'scheduled', 'pending'))`,
		kept:    `select count(*) from river_job where state = 'completed'`,
	}
}

// riverTuned has River's shortest cooldown between fetches, many workers, and the durability of our claims and acks.
func riverTuned() system {
	s := riverDefault()
	s.name, s.slow, s.job.Tuned = "River, tuned", false, true
	s.settings = "MaxWorkers 2000, FetchCooldown 1ms (its minimum) for workers and producers, InsertManyFast, synchronous_commit off for workers as ours"
	s.produce = func(pool *pgxpool.Pool) (produce, error) { return riverProduce(pool, river.FetchCooldownMin) }
	return s
}

// riverArgs is River's job: the same JSON as our payload.
type riverArgs struct{ json.RawMessage }

// Kind implements river.JobArgs.
func (riverArgs) Kind() string { return topic }

var silent = slog.New(slog.DiscardHandler)

func riverSetup(ctx context.Context, dsn string) error {
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: silent})
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
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: silent})
	if err != nil {
		return err
	}
	return inParts(ctx, l.events, 5000, func(ctx context.Context, from, to int) error {
		var jobs []river.InsertManyParams
		for n := from; n < to; n++ {
			jobs = append(jobs, river.InsertManyParams{Args: riverArgs{payload(n)}})
		}
		_, err := client.InsertManyFast(ctx, jobs)
		return err
	})
}

// riverProduce inserts one job in a transaction of its own. The cooldown limits its notifications, too.
func riverProduce(pool *pgxpool.Pool, cooldown time.Duration) (produce, error) {
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: silent, FetchCooldown: cooldown})
	return func(ctx context.Context, n int) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := client.InsertTx(ctx, tx, riverArgs{payload(n)}, nil)
			return err
		})
	}, err
}

// riverWorker does nothing but count.
type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	*counter
}

// Work implements river.Worker.
func (w *riverWorker) Work(_ context.Context, job *river.Job[riverArgs]) error {
	defer w.done(1, 0)
	return w.saw(job.EncodedArgs, "", 0)
}

func riverWork(ctx context.Context, c *counter) (func(context.Context) error, error) {
	cfg, err := pgxpool.ParseConfig(c.DSN)
	if err != nil {
		return nil, err
	}
	config := &river.Config{
		Logger: silent, Workers: river.NewWorkers(),
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}},
	}
	if c.Tuned {
		cfg.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
		config.FetchCooldown = river.FetchCooldownMin
		config.Queues[river.QueueDefault] = river.QueueConfig{MaxWorkers: 2000}
	}
	river.AddWorker(config.Workers, &riverWorker{counter: c})
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(ctx); err != nil {
		return nil, err
	}
	client, err := river.NewClient(riverpgxv5.New(pool), config)
	return func(ctx context.Context) error {
		defer pool.Close()
		if err := client.Start(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		<-ctx.Done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return client.Stop(ctx)
	}, err
}
