package producer_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	"go.opentelemetry.io/otel/trace"

	"github.com/outbox-operator/outbox-operator/dispatcher/client/producer"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// transaction is one of a driver's, as a service sees it.
type transaction struct {
	enqueue  func(...producer.Event) ([]producer.Receipt, error)
	withdraw func(...producer.Named) ([]producer.Withdrawal, error)
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
			withdraw: func(e ...producer.Named) ([]producer.Withdrawal, error) { return outbox.WithdrawBatch(ctx, tx, e) },
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
			withdraw: func(e ...producer.Named) ([]producer.Withdrawal, error) { return outbox.WithdrawBatch(ctx, tx, e) },
			exec:     func(query string) error { _, err := tx.Exec(query); return err },
			commit:   tx.Commit,
			rollback: tx.Rollback,
		}
	},
}

func check(t testing.TB, err error) {
	t.Helper()
	need.OK(t, err)
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
				need.That(t, work == want && events == want, "after the %s: %d rows of work and %d events, want %d of each", end, work, events, want)
			}
		})
	}
}

// A pool or a connection in place of the transaction is refused where the login requires data. CONTRACT: C-10
func TestWrongHandleIsRefused(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := pgtest.Open(t, pgtest.Migrated(t))
	pgtest.Exec(pool, "create table work (n int)")
	dsn, err := url.Parse(pool.Config().ConnString())
	check(t, err)
	dsn.RawQuery = strings.TrimPrefix(dsn.RawQuery+"&options=-c%20outbox.require_data%3Don", "&") // as the page says
	guarded := pgtest.Open(t, dsn.String())
	db, err := sql.Open("pgx", dsn.String())
	check(t, err)
	t.Cleanup(func() { check(t, db.Close()) })
	for name, wrong := range map[string]func() error{
		"pgx": func() error { return need.Err(producer.New(producer.Options{}).Enqueue(ctx, guarded, event(nil))) },
		"batch": func() error {
			return need.Err(producer.New(producer.Options{}).EnqueueBatch(ctx, guarded, []producer.Event{event(nil)}))
		},
		"database/sql": func() error { return need.Err(producer.NewSQL(producer.Options{}).Enqueue(ctx, db, event(nil))) },
		"withdraw": func() error {
			return need.Err(producer.New(producer.Options{}).Withdraw(ctx, guarded, producer.Named{Namespace: "shop", Topic: "orders", DedupeKey: "a"}))
		},
	} {
		need.Fails(t, "after the data, on the transaction's own handle", name+": %v", wrong())
	}
	for name, begin := range drivers {
		tx := begin(t, dsn.String())
		check(t, tx.exec("insert into work values (1)"))
		_, err := tx.enqueue(event(nil), event(nil))
		need.That(t, err == nil && tx.commit() == nil, "%s: %v", name, err)
	}
	pgtest.Want(pool, 4, "%d events, want %d", "select count(*) from outbox.outbox_events")
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
		need.Want(t, want, "%s:\n got %s\nwant %s", got, name)
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
	need.Want(t, 1, "%d statements, want 1", db.statements)
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
	need.Want(t, len(events), "%d rows, want %d", i)
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
		need.That(t, maps.Equal(given, c.headers), "%s: the caller's map was changed to %v", name, c.headers)
		got := pgtest.Value[map[string]string](pool, "select headers from outbox.outbox_events where id = $1", receipt.ID)
		need.That(t, maps.Equal(got, c.want), "%s: headers %v, want %v", name, got, c.want)
	}
}

func TestDatabaseErrorsNameTheRemedy(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := pgtest.Open(t, pgtest.Migrated(t))
	_, err := producer.New(producer.Options{Schema: "elsewhere"}).Enqueue(ctx, pool, event(nil))
	need.That(t, err != nil && strings.Contains(err.Error(), "schema elsewhere") && strings.Contains(err.Error(), "migrate up") && !errors.Is(err, producer.ErrInvalid),
		"with the schema missing: %v", err)

	conn, err := pool.Acquire(ctx)
	check(t, err)
	defer conn.Release()
	role := "stranger_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	_, err = conn.Exec(ctx, "create role "+role+"; grant usage on schema outbox to "+role+"; set role "+role)
	check(t, err)
	_, err = producer.New(producer.Options{}).Enqueue(ctx, conn, event(nil))
	need.That(t, err != nil && strings.Contains(err.Error(), "migrate grants --for producer"), "without the right: %v", err)
	_, err = conn.Exec(ctx, "reset role; drop owned by "+role+"; drop role "+role)
	check(t, err)
}

func percent(n int) *int { return &n }

// The settings of a row reach their columns, alone and in a batch with events without, and read back as
// they were. Both drivers. CONTRACT: C-10, C-15
// REQUIREMENT: STORAGE-10
func TestRowSettingsReachTheirColumns(t *testing.T) {
	t.Parallel()
	retry := producer.Retry{Strategy: "Multiplier", Base: 1500 * time.Millisecond, Max: 90 * time.Minute, Multiplier: "1.5", JitterPercent: percent(0)}
	for name, begin := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.Migrated(t)
			tx := begin(t, dsn)
			id := uuid.New()
			receipts, err := tx.enqueue(event(nil), event(func(e *producer.Event) {
				e.MaxAttempts, e.Retry, e.ID = 1000, &retry, id
				e.AggregateID, e.TenantID, e.Delay, e.LockKey, e.Expires = `"quoted\",{}`, uuid.New(), time.Second, true, 90*time.Minute
			}), event(func(e *producer.Event) {
				e.Retry, e.ExpiresAt = &producer.Retry{}, time.Date(2030, 1, 31, 18, 0, 0, 5e8, time.FixedZone("", 7200))
			}))
			check(t, err)
			check(t, tx.commit())
			need.Want(t, id, "the id is %s, want the one that was given, %s", receipts[1].ID)
			rows, err := pgtest.Pool(t, dsn).Query(t.Context(), `select concat_ws(' ', max_attempts, aggregate_id, next_attempt_at - created_at, retry,
				case when expires_at > '2030-01-01' then expires_at - '2030-01-31T16:00:00Z' else expires_at - created_at end) from outbox.outbox_events order by seq`)
			check(t, err)
			got, err := pgx.CollectRows(rows, pgx.RowTo[string])
			check(t, err)
			want := []string{`00:00:00`, `1000 "quoted\",{} 00:00:01 {"max": "1h30m0s", "base": "1.5s", "strategy": "Multiplier", "multiplier": "1.5", "jitterPercent": 0} 01:30:01`, `00:00:00 {} 00:00:00.5`}
			need.That(t, fmt.Sprint(got) == fmt.Sprint(want), "the rows are\n%q\nwant\n%q", got, want)
			var back producer.Retry
			check(t, json.Unmarshal([]byte(want[1][strings.Index(want[1], `{"max`):strings.LastIndex(want[1], " ")]), &back))
			need.That(t, back.JitterPercent != nil && *back.JitterPercent == 0 && back.Base == retry.Base && back.Max == retry.Max && back.Multiplier == "1.5" && back.Strategy == retry.Strategy,
				"read back: %+v, want %+v", back, retry)
		})
	}
}

// The check in Go and the one in SQL refuse the same backoffs. CONTRACT: C-25
// REQUIREMENT: STORAGE-11
func TestRetryChecksAgree(t *testing.T) {
	t.Parallel()
	pool := pgtest.Open(t, pgtest.Migrated(t))
	outbox := producer.New(producer.Options{})
	for text, ok := range map[string]bool{
		`{}`: true,
		`{"strategy": "Exponential", "base": "1ms", "max": "24h"}`:               true,
		`{"strategy": "PowerOfTwo"}`:                                             true,
		`{"strategy": "Linear", "base": "1h"}`:                                   true,
		`{"base": "1h"}`:                                                         true,
		`{"strategy": "Multiplier", "multiplier": "10.0", "jitterPercent": 100}`: true,
		`{"strategy": "Linear", "base": "61m"}`:                                  false,
		`{"base": "61m"}`:                                                        false,
		`{"max": "500ms"}`:                                                       false,
		`{"base": "25h", "max": "25h"}`:                                          false,
		`{"base": "0.5ms"}`:                                                      false,
		`{"strategy": "Random"}`:                                                 false,
		`{"multiplier": "2"}`:                                                    false,
		`{"strategy": "Linear", "jitterPercent": 0}`:                             false,
		`{"strategy": "PowerOfTwo", "base": "1s"}`:                               false,
		`{"strategy": "Multiplier", "multiplier": "0.5"}`:                        false,
		`{"strategy": "Multiplier", "multiplier": "11"}`:                         false,
		`{"strategy": "Multiplier", "multiplier": "1.23456789"}`:                 false,
		`{"strategy": "Multiplier", "jitterPercent": 101}`:                       false,
		`{"strategy": "Multiplier", "jitterPercent": -1}`:                        false,
	} {
		var retry producer.Retry
		check(t, json.Unmarshal([]byte(text), &retry))
		_, err := outbox.Enqueue(t.Context(), pool, event(func(e *producer.Event) { e.Retry = &retry }))
		need.That(t, (err == nil) == ok && (err == nil || errors.Is(err, producer.ErrInvalid)), "Go about %s: %v, want it taken: %t", text, err, ok)
		_, err = pool.Exec(t.Context(), `select outbox.enqueue('shop', 'orders', '{}', p_options => jsonb_build_object('retry', $1::jsonb))`, text)
		need.That(t, (err == nil) == ok, "SQL about %s: %v, want it taken: %t", text, err, ok)
	}
	for _, text := range []string{`[]`, `null`, `{"bases": "1s"}`, `{"base": 1}`, `{"base": "1 second"}`, `{"base": "-1s"}`, `{"strategy": null}`,
		`{"strategy": "Multiplier", "multiplier": 2}`, `{"strategy": "Multiplier", "jitterPercent": "5"}`, `{"strategy": "Multiplier", "jitterPercent": 1.5}`} {
		need.That(t, need.Err(pool.Exec(t.Context(), `select outbox.enqueue('shop', 'orders', '{}', p_options => jsonb_build_object('retry', $1::jsonb))`, text)) != nil, "SQL took the backoff %s", text)
	}
}

// Both calls work in each of pgx's modes: also with the simple protocol, and without prepared statements, as
// behind PgBouncer.
func TestProducerWorksInEachQueryMode(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Migrated(t)
	full := event(func(e *producer.Event) {
		e.AggregateID, e.TenantID, e.Delay, e.LockKey = "42", uuid.New(), time.Second, true
		e.Headers, e.MaxAttempts = map[string]string{"a": `"'\`}, 5
		e.DedupeKey = e.TenantID.String() + "/1"
	})
	pgtest.EachMode(t, func(t *testing.T, mode pgtest.Mode) {
		conn, err := pgx.Connect(t.Context(), mode.In(dsn))
		check(t, err)
		defer conn.Close(t.Context())
		outbox := producer.New(producer.Options{})
		_, err = outbox.Enqueue(t.Context(), conn, full)
		check(t, err)
		receipts, err := outbox.EnqueueBatch(t.Context(), conn, []producer.Event{event(nil), full})
		check(t, err)
		need.That(t, receipts[0].Enqueued && !receipts[1].Enqueued, "%+v, want the first enqueued", receipts)
	})
}

// Without options a payload may have 1 MiB, and a batch 32 MiB. What is more is refused before anything is
// sent. CONTRACT: C-13
func TestDefaultLimitsOfSizeAreKept(t *testing.T) {
	const limit = 1 << 20
	pool := pgtest.Open(t, pgtest.Migrated(t))
	outbox := producer.New(producer.Options{})
	sized := func(bytes int) producer.Event { // the payload's two quotes count
		return event(func(e *producer.Event) { e.Payload = strings.Repeat("x", bytes-2) })
	}
	tx := begin(t, pool)
	if _, err := outbox.Enqueue(t.Context(), tx, sized(limit+1)); !errors.Is(err, producer.ErrInvalid) || !strings.Contains(err.Error(), "more than the limit of 1048576") {
		t.Errorf("1 MiB and a byte: %v, want ErrInvalid with the limit", err)
	}
	need.Want(t, nil, "1 MiB: %v", need.Err(outbox.Enqueue(t.Context(), tx, sized(limit))))
	if _, err := outbox.EnqueueBatch(t.Context(), tx, slices.Repeat([]producer.Event{sized(limit)}, 32)); !errors.Is(err, producer.ErrInvalid) || !strings.Contains(err.Error(), "enqueue it in parts") {
		t.Errorf("32 payloads of 1 MiB, and what is around them: %v, want ErrInvalid with the remedy", err)
	}
	check(t, tx.Commit(t.Context()))
	pgtest.Want(pool, 1, "%d rows, want the one within the limit", "select count(*) from outbox.outbox_events")

	ended, end := context.WithCancel(t.Context()) // the batch is good, and writing it would take long
	end()
	if _, err := outbox.EnqueueBatch(ended, pool, slices.Repeat([]producer.Event{sized(limit)}, 31)); !errors.Is(err, context.Canceled) {
		t.Errorf("31 payloads of 1 MiB: %v, want that they were on their way", err)
	}
}

// A producer with a namespace of its own enqueues a topic and a payload, and the caller's event stays as it is.
// REQUIREMENT: OVERVIEW-17
func TestDefaultNamespaceIsTheProducers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Open(t, pgtest.Migrated(t))
	outbox := producer.New(producer.Options{Namespace: "shop"})
	events := []producer.Event{{Topic: "orders", Payload: 1}, {Namespace: "other", Topic: "orders", Payload: 2}}
	tx := begin(t, pool)
	need.OK(t, need.Err(outbox.EnqueueBatch(t.Context(), tx, events)))
	need.OK(t, need.Err(outbox.Enqueue(t.Context(), tx, events[0])))
	var got string
	err := tx.QueryRow(t.Context(), `select string_agg(namespace, ',' order by seq) from outbox.outbox_events`).Scan(&got)
	need.That(t, err == nil && got == "shop,other,shop", "namespaces %q, %v, want shop,other,shop", got, err)
	need.Want(t, "", "the caller's event has the namespace %q now", events[0].Namespace)
}

// With ObjectsOnly a payload is a mapping, and what is not one is refused before anything is sent.
// CONTRACT: C-13
// REQUIREMENT: OVERVIEW-14
func TestObjectsOnlyRefusesOtherPayloads(t *testing.T) {
	t.Parallel()
	pool := pgtest.Open(t, pgtest.Migrated(t))
	outbox, tx := producer.New(producer.Options{Namespace: "shop", ObjectsOnly: true}), begin(t, pool)
	for _, payload := range []any{json.RawMessage(" \n\t\r{}"), map[string]int{"a": 1}, struct{ A []int }{}} {
		need.Want(t, nil, "%v: %v", need.Err(outbox.Enqueue(t.Context(), tx, producer.Event{Topic: "orders", Payload: payload})), payload)
	}
	for _, payload := range []any{[]int{1, 2}, "text", 42, json.RawMessage(" null"), map[string]int(nil)} {
		_, err := outbox.Enqueue(t.Context(), tx, producer.Event{Topic: "orders", Payload: payload})
		need.That(t, errors.Is(err, producer.ErrInvalid) && strings.Contains(err.Error(), "Payload is not a JSON object"), "%v: %v, want ErrInvalid", payload, err)
		_, err = outbox.EnqueueBatch(t.Context(), tx, []producer.Event{{Topic: "orders", Payload: payload}})
		need.That(t, errors.Is(err, producer.ErrInvalid), "%v in a batch: %v, want ErrInvalid", payload, err)
	}
}
