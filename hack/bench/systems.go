package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
)

// system is something that a user could pick, in one mode.
type system struct {
	Name     string
	Settings string // what was chosen, for the tables
	Peer     bool   // not ours

	job    job // what a worker process does
	script string
	// setup makes the schema, insert adds events through the public bulk call.
	setup  func(ctx context.Context, dsn string) error
	insert func(ctx context.Context, dsn string, l load) error
	// produce returns a function that adds one event in a transaction of its own. nil: the script does.
	produce func(pool *pgxpool.Pool) (produce, error)
	// left is SQL for whether events wait or are in work; delivered counts the rows that are kept of
	// delivered events, and is empty when none are.
	left, delivered string
}

// produce adds event n and returns after the commit.
type produce func(ctx context.Context, n int) error

// ours is our system in one mode.
func ours(name, settings string, j job) system {
	s := system{
		Name: name, Settings: settings, job: j, setup: outboxSetup, insert: outboxInsert,
		produce:   func(pool *pgxpool.Pool) (produce, error) { return outboxProduce(pool, oneTopic, j.Listen), nil },
		left:      `select exists (select from outbox.outbox_events where live)`,
		delivered: `select count(*) from outbox.outbox_events where status = 'delivered'`,
	}
	if s.job.System == "" {
		s.job.System = "outbox"
	}
	if s.job.Batch == 0 {
		s.job.Batch = 2000
	}
	if j.Delete {
		s.delivered = ""
	}
	return s
}

func oneTopic(int) string { return topic }

func oursKept() system {
	return ours("ours, rows kept", "batchSize 2000; the rest default", job{})
}

func oursDeleted() system {
	return ours("ours, delete at ack", "batchSize 2000, retention.delivered 0s; the rest default", job{Delete: true})
}

func oursKeyed() system {
	return ours("ours, ordering Key", "batchSize 2000, ordering Key; the rest default", job{Key: true})
}

func oursPolling() system {
	return ours("ours, polling", "all default, no notification anywhere", job{Batch: 500})
}

func oursWoken() system {
	return ours("ours, wake-up", "wakeUp Listen, producer.Waker after the commit; the rest default", job{Batch: 500, Listen: true})
}

func rawPolling() system {
	return ours("raw SQL, polling", "one Go loop, polled each 2 ms", job{System: "raw", Poll: 2 * time.Millisecond})
}

func rawKept() system {
	return ours("raw SQL, rows kept", "one Go loop: one connection claims 2000, one acks", job{System: "raw"})
}

func rawDeleted() system {
	return ours("raw SQL, deleted", "one Go loop: one connection claims 2000, one deletes", job{System: "raw", Delete: true})
}

// yardsticks are the same with claims of 500, as they were measured when the targets were set.
func yardsticks() (kept, deleted system) {
	kept, deleted = rawKept(), rawDeleted()
	kept.job.Batch, deleted.job.Batch = 500, 500
	kept.Name, kept.Settings = yardstickKept, "the same, and it claims 500"
	deleted.Name, deleted.Settings = yardstickDeleted, "the same, and it claims 500"
	return kept, deleted
}

// riverBest has River's shortest cooldown between fetches and many workers.
func riverBest() system {
	s := riverDefault()
	s.Name, s.Settings = "River", "MaxWorkers 2000, FetchCooldown 1ms (its minimum) for workers and producers; InsertManyFast"
	s.job.Best, s.job.Batch = true, 2000
	s.produce = func(pool *pgxpool.Pool) (produce, error) { return riverProduce(pool, river.FetchCooldownMin) }
	return s
}

func riverDefault() system {
	return system{
		Name: "River, default", Settings: "MaxWorkers 100; the rest default", Peer: true,
		job: job{System: "river"}, setup: riverSetup, insert: riverInsert,
		produce:   func(pool *pgxpool.Pool) (produce, error) { return riverProduce(pool, river.FetchCooldownDefault) },
		left:      `select exists (select from river_job where state in ('available', 'running', 'retryable', 'scheduled', 'pending'))`,
		delivered: `select count(*) from river_job where state = 'completed'`,
	}
}

func (b *bench) graphileBest() system {
	s := b.graphileDefault()
	s.Name, s.Settings = "Graphile Worker", "localQueue.size 500, concurrentJobs 24, completeJobBatchDelay 0 (its page on performance); addJobs"
	s.job.Best = true
	return s
}

func (b *bench) graphileDefault() system {
	s := b.scripted("Graphile Worker, default", "concurrentJobs 10; the rest default", "graphile")
	s.left = `select exists (select from graphile_worker._private_jobs)`
	s.produce = func(pool *pgxpool.Pool) (produce, error) {
		return func(ctx context.Context, n int) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `select graphile_worker.add_job($1, $2::json)`, topic, string(payload(n, 200)))
				return err
			})
		}, nil
	}
	return s
}

func (b *bench) pgbossBest() system {
	s := b.pgbossDefault()
	s.Name, s.Settings = "pg-boss", "batchSize 1000, burstWhenBatchFull, localConcurrency 4; insert. For latency localConcurrency 1, and notify with useListenNotify"
	s.job.Best = true
	return s
}

func (b *bench) pgbossDefault() system {
	s := b.scripted("pg-boss, default", "batchSize 1000; the rest default (alone, it handles one job in 2 s)", "pgboss")
	s.left = `select exists (select from pgboss.job where state < 'completed')`
	s.delivered = `select count(*) from pgboss.job where state = 'completed'`
	return s
}

// scripted is a peer in Node.js. Its script makes the schema too.
func (b *bench) scripted(name, settings, script string) system {
	s := system{Name: name, Settings: settings, Peer: true, job: job{System: script}, script: script + ".js"}
	s.insert = func(ctx context.Context, dsn string, l load) error {
		j := job{System: script, DSN: dsn, Role: "insert", Best: true, Events: l.events, Payload: l.payload}
		return b.script(ctx, s.script, j)
	}
	s.setup = func(ctx context.Context, dsn string) error { return s.insert(ctx, dsn, load{}) }
	return s
}

// script runs a job that ends by itself in Node.js.
func (b *bench) script(ctx context.Context, script string, j job) error {
	w, err := startWorker(ctx, []string{b.node, "peers/" + script}, j)
	if err != nil {
		return err
	}
	g := group{w}
	if err := g.begin(); err != nil {
		return err
	}
	_, err = g.await(ctx, int64(j.Events), 5*time.Minute)
	_, stopErr := g.stop()
	return errors.Join(err, stopErr)
}

// argv is the command line of a system's worker process.
func (b *bench) argv(s system) ([]string, error) {
	if s.script != "" {
		return []string{b.node, "peers/" + s.script}, nil
	}
	self, err := os.Executable()
	return []string{self, workerFlag}, err
}

// workerFlag makes this program a worker process.
const workerFlag = "-worker"

// work is what a worker process of this program does.
func work(ctx context.Context, j job) error {
	switch j.System {
	case "outbox":
		return outboxWork(ctx, j)
	case "raw":
		return rawWork(ctx, j)
	case "river":
		return riverWork(ctx, j)
	case "consumer":
		return consumerWork(ctx, j)
	}
	return fmt.Errorf("there is no system %q", j.System)
}
