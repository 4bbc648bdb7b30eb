package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/outbox-operator/outbox-operator/dispatcher/producer"
)

// The cases of the cell about producers.
const (
	caseBatch  = "500 in a transaction"
	caseSingle = "1 in a transaction"
	batchSize  = 500
)

const (
	plainInsert = "plain INSERT"
	oursEnqueue = "ours, Enqueue"
)

// writer adds events in a producer's transaction.
type writer struct {
	system
	write func(ctx context.Context, tx pgx.Tx, from, n int) error
	db    *database
	next  int
}

// runEnqueue measures the writers in turns, so that each round sees the same machine.
func runEnqueue(ctx context.Context, b *bench) {
	writers := []*writer{plainWriter(), outboxWriter(), riverWriter()}
	if b.node != "" {
		writers = append(writers, graphileWriter(b.graphileDefault()))
	}
	for _, w := range writers {
		defer func() {
			if w.db != nil {
				w.db.drop()
			}
		}()
	}
	rounds := max(1, 3*b.runs) // the case of single events is short, and has noise
	for round := range rounds + 1 {
		for _, c := range []struct {
			name               string
			size, transactions int
		}{{caseBatch, batchSize, b.size.batches}, {caseSingle, 1, b.size.singles}} {
			for _, w := range writers {
				run := func() (measure, error) { return b.producerCPU(ctx, w, c.size, c.transactions) }
				if round > 0 {
					b.measure(ctx, "enqueue", w.system, c.name, run)
				} else if _, err := run(); err != nil { // plans, caches and pages are made
					b.say("enqueue, %s, %s: the first round: %v", w.Name, c.name, err)
				}
			}
		}
	}
}

// producerCPU measures the CPU time of the backend that takes the events, with that of begin and commit.
func (b *bench) producerCPU(ctx context.Context, w *writer, size, transactions int) (measure, error) {
	if w.db == nil {
		db, err := b.srv.database(ctx)
		if err != nil {
			return nil, err
		}
		w.db = db
		if err := w.setup(ctx, db.dsn()); err != nil {
			return nil, fmt.Errorf("set up: %w", err)
		}
	}
	pid := int(w.db.conn.PgConn().PID())
	before, err := backendCPU(pid)
	if err != nil {
		return nil, err
	}
	for range transactions {
		err := pgx.BeginFunc(ctx, w.db.conn, func(tx pgx.Tx) error { return w.write(ctx, tx, w.next, size) })
		if err != nil {
			return nil, err
		}
		w.next += size
	}
	after, err := backendCPU(pid)
	if err != nil {
		return nil, err
	}
	return measure{insertCPU: float64(after-before) / 1e3 / float64(size*transactions)}, nil
}

// backendCPU is what a process has used, in nanoseconds: /proc/PID/stat counts in hundredths of a second.
func backendCPU(pid int) (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		return 0, err
	}
	used, _, _ := strings.Cut(string(data), " ")
	n, err := strconv.ParseInt(used, 10, 64)
	return time.Duration(n), err
}

func aggregateOf(n int) string { return fmt.Sprint("order-", n*7919%10_000) }

// plainWriter is what a service with Debezium does: rows of the outbox layout of its documentation.
func plainWriter() *writer {
	statement := func(n int) string {
		var values []string
		for i := range n {
			values = append(values, fmt.Sprintf("($%d, $%d, $%d, $%d, $%d)", 5*i+1, 5*i+2, 5*i+3, 5*i+4, 5*i+5))
		}
		return `insert into plain (id, aggregatetype, aggregateid, type, payload) values ` + strings.Join(values, ", ")
	}
	one, many := statement(1), statement(batchSize)
	w := &writer{system: system{Name: plainInsert, Settings: "one statement of many rows, prepared, into Debezium's outbox table", Peer: true}}
	w.setup = func(ctx context.Context, dsn string) error {
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, `create table plain (id uuid primary key, aggregatetype varchar(255) not null,
			aggregateid varchar(255) not null, type varchar(255) not null, payload jsonb not null)`)
		return err
	}
	w.write = func(ctx context.Context, tx pgx.Tx, from, n int) error {
		var args []any
		for i := from; i < from+n; i++ {
			id, err := uuid.NewV7()
			if err != nil {
				return err
			}
			args = append(args, id, "order", aggregateOf(i), "OrderPlaced", payload(i, 200))
		}
		sql := one
		if n > 1 {
			sql = many
		}
		_, err := tx.Exec(ctx, sql, args...)
		return err
	}
	return w
}

func outboxWriter() *writer {
	outbox := producer.New(producer.Options{})
	w := &writer{system: system{Name: oursEnqueue, Settings: "Enqueue, EnqueueBatch", setup: outboxSetup}}
	w.write = func(ctx context.Context, tx pgx.Tx, from, n int) error {
		events := make([]producer.Event, n)
		for i := range events {
			events[i] = producer.Event{
				Namespace: namespace, Topic: topic, EventType: "OrderPlaced", AggregateType: "order",
				AggregateID: aggregateOf(from + i), Payload: payload(from+i, 200),
			}
		}
		if n == 1 {
			_, err := outbox.Enqueue(ctx, tx, events[0])
			return err
		}
		_, err := outbox.EnqueueBatch(ctx, tx, events)
		return err
	}
	return w
}

func riverWriter() *writer {
	w := &writer{system: system{Name: "River", Settings: "InsertTx, InsertManyFastTx", Peer: true, setup: riverSetup}}
	client, err := river.NewClient(riverpgxv5.New((*pgxpool.Pool)(nil)), &river.Config{Logger: slog.New(slog.DiscardHandler)})
	w.write = func(ctx context.Context, tx pgx.Tx, from, n int) error {
		if err != nil {
			return err
		}
		if n == 1 {
			_, err := client.InsertTx(ctx, tx, riverArgs{payload(from, 200)}, nil)
			return err
		}
		params := make([]river.InsertManyParams, n)
		for i := range params {
			params[i] = river.InsertManyParams{Args: riverArgs{payload(from+i, 200)}}
		}
		_, err := client.InsertManyFastTx(ctx, tx, params)
		return err
	}
	return w
}

func graphileWriter(s system) *writer {
	s.Name, s.Settings = graphile, "add_job, for each of an array"
	w := &writer{system: s}
	w.write = func(ctx context.Context, tx pgx.Tx, from, n int) error {
		payloads := make([]string, n)
		for i := range payloads {
			payloads[i] = string(payload(from+i, 200))
		}
		_, err := tx.Exec(ctx, `select graphile_worker.add_job($1, p) from unnest($2::json[]) as p`, topic, payloads)
		return err
	}
	return w
}

// dearerThanPlain compares the CPU time with the plain INSERT's.
func dearerThanPlain(c string, limit float64) check {
	return func(r *results) (string, bool, bool) {
		measured, _, ok := compare(insertCPU, r.find("enqueue", oursEnqueue, c), r.find("enqueue", plainInsert, c), 0)
		if !ok {
			return "", false, false
		}
		got := r.find("enqueue", oursEnqueue, c).to(r.find("enqueue", plainInsert, c), insertCPU)
		return measured + " of database CPU", got <= limit, true
	}
}
