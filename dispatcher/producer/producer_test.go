package producer_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	"go.opentelemetry.io/otel/trace"

	"github.com/outbox-operator/outbox-operator/dispatcher/producer"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// transaction is one of a driver's, as a service sees it.
type transaction struct {
	enqueue  func(...producer.Event) ([]producer.Receipt, error)
	exec     func(query string) error
	commit   func() error
	rollback func() error
}

// drivers begin a transaction in the database at dsn.
var drivers = map[string]func(t *testing.T, dsn string) transaction{
	"pgx": func(t *testing.T, dsn string) transaction {
		ctx := t.Context()
		conn, err := pgx.Connect(ctx, dsn)
		check(t, err)
		t.Cleanup(func() { conn.Close(context.Background()) })
		tx, err := conn.Begin(ctx)
		check(t, err)
		outbox := producer.New(producer.Options{})
		return transaction{
			enqueue:  func(e ...producer.Event) ([]producer.Receipt, error) { return outbox.EnqueueBatch(ctx, tx, e) },
			exec:     func(query string) error { _, err := tx.Exec(ctx, query); return err },
			commit:   func() error { return tx.Commit(ctx) },
			rollback: func() error { return tx.Rollback(ctx) },
		}
	},
	"database/sql": func(t *testing.T, dsn string) transaction {
		ctx := t.Context()
		db, err := sql.Open("pgx", dsn)
		check(t, err)
		t.Cleanup(func() { check(t, db.Close()) })
		tx, err := db.Begin()
		check(t, err)
		outbox := producer.NewSQL(producer.Options{})
		return transaction{
			enqueue:  func(e ...producer.Event) ([]producer.Receipt, error) { return outbox.EnqueueBatch(ctx, tx, e) },
			exec:     func(query string) error { _, err := tx.Exec(query); return err },
			commit:   tx.Commit,
			rollback: tx.Rollback,
		}
	},
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func event(change func(*producer.Event)) producer.Event {
	e := producer.Event{Namespace: "shop", Topic: "orders", Payload: map[string]int{"order": 42}}
	if change != nil {
		change(&e)
	}
	return e
}

// CONTRACT: C-10
// REQUIREMENT: OVERVIEW-1, STORAGE-26, cpt-cf-mini-chat-feature-usage-outbox, cpt-cf-mini-chat-flow-usage-outbox-enqueue, cpt-cf-mini-chat-dod-usage-outbox-transactional
func TestCommitsAndRollsBackWithTheWork(t *testing.T) {
	for name, begin := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.Migrated(t)
			pool := pgtest.Open(t, dsn)
			pgtest.Exec(pool, "create table work (n int)")
			for _, end := range []string{"rollback", "commit"} {
				tx := begin(t, dsn)
				check(t, tx.exec("insert into work values (1)"))
				receipts, err := tx.enqueue(event(nil))
				check(t, err)
				if !receipts[0].Enqueued || receipts[0].ID.Version() != 7 {
					t.Fatalf("receipt %+v, want a new event with a UUID of version 7", receipts[0])
				}
				want := 0
				if end == "commit" {
					check(t, tx.commit())
					want = 1
				} else {
					check(t, tx.rollback())
				}
				work, events := pgtest.Value[int](pool, "select count(*) from work"), pgtest.Value[int](pool, "select count(*) from outbox.outbox_events")
				if work != want || events != want {
					t.Errorf("after the %s: %d rows of work and %d events, want %d of each", end, work, events, want)
				}
			}
		})
	}
}

// Each field lands in its column. CONTRACT: C-10, C-14, C-15
func TestEachFieldLandsInItsColumn(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := pgtest.Open(t, pgtest.Migrated(t))
	outbox := producer.New(producer.Options{})
	tenant := uuid.New()
	full := producer.Event{
		Namespace: "shop", Topic: "orders", Payload: json.RawMessage(`{"b": [1, null, "é ☃ \ud83d\ude00"], "a": 1.50}`),
		EventType: "OrderPlaced", AggregateType: "order", AggregateID: "42", PartitionKey: "customer-7",
		TenantID: tenant, DedupeKey: tenant.String() + "/42", Headers: map[string]string{"correlation_id": "c-1"},
		Delay: 90 * time.Minute,
	}
	bare := producer.Event{Namespace: "shop", Topic: "orders", Payload: json.RawMessage(`null`)}
	const row = `select jsonb_build_object('namespace', namespace, 'topic', topic, 'payload', payload, 'event_type', event_type,
		'aggregate_type', aggregate_type, 'aggregate_id', aggregate_id, 'partition_key', partition_key, 'tenant_id', tenant_id,
		'dedupe_key', dedupe_key, 'headers', headers, 'delay', extract(epoch from next_attempt_at - created_at)::int,
		'status', status, 'attempts', attempts)::text from outbox.outbox_events where id = $1`
	for name, c := range map[string]struct {
		event producer.Event
		want  string
	}{
		"all fields": {full, `{"namespace": "shop", "topic": "orders", "payload": {"a": 1.50, "b": [1, null, "é ☃ 😀"]},
			"event_type": "OrderPlaced", "aggregate_type": "order", "aggregate_id": "42", "partition_key": "customer-7",
			"tenant_id": "` + tenant.String() + `", "dedupe_key": "` + tenant.String() + `/42",
			"headers": {"correlation_id": "c-1"}, "delay": 5400, "status": "pending", "attempts": 0}`},
		"only the required": {bare, `{"namespace": "shop", "topic": "orders", "payload": null, "event_type": null,
			"aggregate_type": null, "aggregate_id": null, "partition_key": null, "tenant_id": null, "dedupe_key": null,
			"headers": {}, "delay": 0, "status": "pending", "attempts": 0}`},
	} {
		receipt, err := outbox.Enqueue(ctx, pool, c.event)
		check(t, err)
		var got, want string
		check(t, pool.QueryRow(ctx, row, receipt.ID).Scan(&got))
		check(t, pool.QueryRow(ctx, "select $1::jsonb::text", c.want).Scan(&want))
		if got != want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want)
		}
	}
}

// counter counts the statements that reach the database.
type counter struct {
	producer.PGX
	statements int
}

func (c *counter) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	c.statements++
	return c.PGX.Query(ctx, query, args...)
}

func TestBatchKeepsOrderInOneStatement(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := &counter{PGX: pgtest.Pool(t, pgtest.Migrated(t))}
	events := make([]producer.Event, 500)
	for i := range events {
		events[i] = event(func(e *producer.Event) { e.AggregateID = fmt.Sprint(i) })
	}
	outbox := producer.New(producer.Options{})
	receipts, err := outbox.EnqueueBatch(ctx, db, events)
	check(t, err)
	if db.statements != 1 {
		t.Errorf("%d statements, want 1", db.statements)
	}
	rows, err := db.PGX.Query(ctx, "select id, aggregate_id from outbox.outbox_events order by seq")
	check(t, err)
	i := 0
	var id uuid.UUID
	var aggregate string
	_, err = pgx.ForEachRow(rows, []any{&id, &aggregate}, func() error {
		if id != receipts[i].ID || aggregate != fmt.Sprint(i) {
			return fmt.Errorf("row %d is %s of aggregate %s, want %s of %d", i, id, aggregate, receipts[i].ID, i)
		}
		i++
		return nil
	})
	check(t, err)
	if i != len(events) {
		t.Errorf("%d rows, want %d", i, len(events))
	}
	if none, err := outbox.EnqueueBatch(ctx, db, nil); none != nil || err != nil || db.statements != 1 {
		t.Errorf("an empty batch gave %v, %v and a statement; want nothing at all", none, err)
	}
}

// CONTRACT: C-70
func TestTraceContextTravelsInHeaders(t *testing.T) {
	t.Parallel()
	pool := pgtest.Open(t, pgtest.Migrated(t))
	state, err := trace.ParseTraceState("vendor=1")
	check(t, err)
	traced := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, TraceState: state,
	}))
	const parent = "00-01000000000000000000000000000000-0200000000000000-01"
	for name, c := range map[string]struct {
		ctx           context.Context
		headers, want map[string]string
	}{
		"of ctx":              {traced, map[string]string{"a": "b"}, map[string]string{"a": "b", "traceparent": parent, "tracestate": "vendor=1"}},
		"set by the caller":   {traced, map[string]string{"traceparent": "mine"}, map[string]string{"traceparent": "mine"}},
		"none, without trace": {t.Context(), nil, map[string]string{}},
	} {
		given := maps.Clone(c.headers)
		receipt, err := producer.New(producer.Options{}).Enqueue(c.ctx, pool, event(func(e *producer.Event) { e.Headers = c.headers }))
		check(t, err)
		if !maps.Equal(given, c.headers) {
			t.Errorf("%s: the caller's map was changed to %v", name, c.headers)
		}
		got := pgtest.Value[map[string]string](pool, "select headers from outbox.outbox_events where id = $1", receipt.ID)
		if !maps.Equal(got, c.want) {
			t.Errorf("%s: headers %v, want %v", name, got, c.want)
		}
	}
}

func TestDatabaseErrorsNameTheRemedy(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := pgtest.Open(t, pgtest.Migrated(t))
	_, err := producer.New(producer.Options{Schema: "elsewhere"}).Enqueue(ctx, pool, event(nil))
	if err == nil || !strings.Contains(err.Error(), "schema elsewhere") || !strings.Contains(err.Error(), "migrate up") || errors.Is(err, producer.ErrInvalid) {
		t.Errorf("with the schema missing: %v", err)
	}

	conn, err := pool.Acquire(ctx)
	check(t, err)
	defer conn.Release()
	role := "stranger_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	_, err = conn.Exec(ctx, "create role "+role+"; grant usage on schema outbox to "+role+"; set role "+role)
	check(t, err)
	_, err = producer.New(producer.Options{}).Enqueue(ctx, conn, event(nil))
	if err == nil || !strings.Contains(err.Error(), "migrate grants --for producer") {
		t.Errorf("without the right: %v", err)
	}
	_, err = conn.Exec(ctx, "reset role; drop owned by "+role+"; drop role "+role)
	check(t, err)
}
