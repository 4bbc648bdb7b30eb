package producer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher/producer"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func percent(n int) *int { return &n }

// The settings of a row reach their columns, alone and in a batch with events without, and read back as
// they were. Both drivers. CONTRACT: C-10, C-15
// REQUIREMENT: STORAGE-10
func TestRowSettings(t *testing.T) {
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
				e.AggregateID, e.TenantID, e.Delay, e.LockKey = `"quoted\",{}`, uuid.New(), time.Second, true
			}), event(func(e *producer.Event) { e.Retry = &producer.Retry{} }))
			check(t, err)
			check(t, tx.commit())
			if receipts[1].ID != id {
				t.Errorf("the id is %s, want the one that was given, %s", receipts[1].ID, id)
			}
			rows, err := pgtest.Pool(t, dsn).Query(t.Context(), `select concat_ws(' ', max_attempts, aggregate_id, next_attempt_at - created_at, retry) from outbox.outbox_events order by seq`)
			check(t, err)
			got, err := pgx.CollectRows(rows, pgx.RowTo[string])
			check(t, err)
			want := []string{`00:00:00`, `1000 "quoted\",{} 00:00:01 {"max": "1h30m0s", "base": "1.5s", "strategy": "Multiplier", "multiplier": "1.5", "jitterPercent": 0}`, `00:00:00 {}`}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("the rows are\n%q\nwant\n%q", got, want)
			}
			var back producer.Retry
			check(t, json.Unmarshal([]byte(want[1][strings.Index(want[1], `{"max`):]), &back))
			if back.JitterPercent == nil || *back.JitterPercent != 0 || back.Base != retry.Base || back.Max != retry.Max || back.Multiplier != "1.5" || back.Strategy != retry.Strategy {
				t.Errorf("read back: %+v, want %+v", back, retry)
			}
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
		if (err == nil) != ok || err != nil && !errors.Is(err, producer.ErrInvalid) {
			t.Errorf("Go about %s: %v, want it taken: %t", text, err, ok)
		}
		_, err = pool.Exec(t.Context(), `select outbox.enqueue('shop', 'orders', '{}', p_options => jsonb_build_object('retry', $1::jsonb))`, text)
		if (err == nil) != ok {
			t.Errorf("SQL about %s: %v, want it taken: %t", text, err, ok)
		}
	}
	for _, text := range []string{`[]`, `null`, `{"bases": "1s"}`, `{"base": 1}`, `{"base": "1 second"}`, `{"base": "-1s"}`, `{"strategy": null}`,
		`{"strategy": "Multiplier", "multiplier": 2}`, `{"strategy": "Multiplier", "jitterPercent": "5"}`, `{"strategy": "Multiplier", "jitterPercent": 1.5}`} {
		if _, err := pool.Exec(t.Context(), `select outbox.enqueue('shop', 'orders', '{}', p_options => jsonb_build_object('retry', $1::jsonb))`, text); err == nil {
			t.Errorf("SQL took the backoff %s", text)
		}
	}
}

// Both calls work in each of pgx's modes: also with the simple protocol, and without prepared statements, as
// behind PgBouncer.
func TestQueryModes(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Migrated(t)
	full := event(func(e *producer.Event) {
		e.AggregateID, e.TenantID, e.Delay, e.LockKey = "42", uuid.New(), time.Second, true
		e.Headers, e.MaxAttempts = map[string]string{"a": `"'\`}, 5
		e.DedupeKey = e.TenantID.String() + "/1"
	})
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		config, err := pgx.ParseConfig(dsn)
		check(t, err)
		config.DefaultQueryExecMode = mode
		conn, err := pgx.ConnectConfig(t.Context(), config)
		check(t, err)
		defer conn.Close(t.Context())
		outbox := producer.New(producer.Options{})
		_, err = outbox.Enqueue(t.Context(), conn, full)
		check(t, err)
		receipts, err := outbox.EnqueueBatch(t.Context(), conn, []producer.Event{event(nil), full})
		check(t, err)
		if !receipts[0].Enqueued || receipts[1].Enqueued {
			t.Errorf("mode %s: %+v, want the first enqueued", mode, receipts)
		}
	}
}

// Without options a payload may have 1 MiB, and a batch 32 MiB. What is more is refused before anything is
// sent. CONTRACT: C-13
func TestDefaultLimits(t *testing.T) {
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
	if _, err := outbox.Enqueue(t.Context(), tx, sized(limit)); err != nil {
		t.Errorf("1 MiB: %v", err)
	}
	if _, err := outbox.EnqueueBatch(t.Context(), tx, slices.Repeat([]producer.Event{sized(limit)}, 32)); !errors.Is(err, producer.ErrInvalid) || !strings.Contains(err.Error(), "enqueue it in parts") {
		t.Errorf("32 payloads of 1 MiB, and what is around them: %v, want ErrInvalid with the remedy", err)
	}
	check(t, tx.Commit(t.Context()))
	if n := pgtest.Value[int](pool, "select count(*) from outbox.outbox_events"); n != 1 {
		t.Errorf("%d rows, want the one within the limit", n)
	}

	ended, end := context.WithCancel(t.Context()) // the batch is good, and writing it would take long
	end()
	if _, err := outbox.EnqueueBatch(ended, pool, slices.Repeat([]producer.Event{sized(limit)}, 31)); !errors.Is(err, context.Canceled) {
		t.Errorf("31 payloads of 1 MiB: %v, want that they were on their way", err)
	}
}
