package consumer_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/outbox-operator/outbox-operator/dispatcher/client/consumer"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

var errEffect = errors.New("the effect failed")

// An event that comes again is skipped, whatever its token and attempt.
//
// CONTRACT: C-80
// REQUIREMENT: RULE-010-001, RULE-010-002
func TestDuplicatesAreSkipped(t *testing.T) {
	each(t, func(t *testing.T, pool pgtest.DB, newSide func(consumer.Options) side) {
		c := newSide(consumer.Options{})
		e := newEvent()
		got, err := c.handle(t.Context(), e, effect(e))
		expect(t, got, err, consumer.Handled, nil)
		for _, token := range []int64{7, 9, 3, 0} {
			again := *e
			again.FencingToken, again.Attempt = token, int(token)
			got, err := c.handle(t.Context(), &again, func(execer) error { t.Error("the effect ran again"); return nil })
			expect(t, got, err, consumer.AlreadyHandled, nil)
		}
		pgtest.Want(pool, 1, "%d effects, want 1", "select count(*) from effects")
		pgtest.Want(pool, 1, "%d records, want 1", "select count(*) from processed_events where tracking_id = $1 and consumer_id = 'billing' and fencing_token = 7", e.ID)
	})
}

// Effect and record commit together or not at all. The failure is returned and logged with
// its context, without the payload.
//
// CONTRACT: C-80
// REQUIREMENT: RULE-010-012, RULE-010-032
func TestFailureChangesNothing(t *testing.T) {
	each(t, func(t *testing.T, pool pgtest.DB, newSide func(consumer.Options) side) {
		var log bytes.Buffer
		c := newSide(consumer.Options{Logger: slog.New(slog.NewJSONHandler(&log, nil))})
		e := newEvent()
		e.Topic, e.Headers = "orders", map[string]string{"correlationid": "c-7"}
		got, err := c.handle(t.Context(), e, func(run execer) error {
			check(t, effect(e)(run))
			return errEffect
		})
		expect(t, got, err, consumer.Failed, errEffect)
		func() {
			defer func() {
				need.That(t, recover() != nil, "the panic was swallowed")
			}()
			_, _ = c.handle(t.Context(), e, func(run execer) error {
				check(t, effect(e)(run))
				panic("at the disco")
			})
		}()
		// An effect that swallows an error of the database has none: the commit fails.
		got, err = c.handle(t.Context(), e, func(run execer) error {
			need.That(t, run("insert into missing values (1)") != nil, "there is a table missing")
			return nil
		})
		need.That(t, got == consumer.Failed && err != nil, "a transaction that PostgreSQL had aborted is %v, %v", got, err)
		need.Want(t, 0, "%d rows were left behind", pgtest.Value[int](pool, "select count(*) from effects")+pgtest.Value[int](pool, "select count(*) from processed_events"))
		lines := strings.Count(log.String(), "\n")
		need.That(t, lines == 3, "%d lines for 3 failures: %s", lines, &log)
		for _, want := range []string{e.ID.String(), `"consumer_id":"billing"`, `"correlation_id":"c-7"`, `"attempt":1`, `"fencing_token":7`, `"topic":"orders"`, "the effect failed"} {
			need.That(t, strings.Contains(log.String(), want), "the log has no %s: %s", want, &log)
		}
		need.That(t, !strings.Contains(log.String(), "42}"), "the log has the payload: %s", &log)
		got, err = c.handle(t.Context(), e, effect(e))
		expect(t, got, err, consumer.Handled, nil)
	})
}

// No effect before the check. Neither runs where the record cannot be written.
// REQUIREMENT: RULE-010-031
func TestNoEffectWithoutTheRecord(t *testing.T) {
	each(t, func(t *testing.T, pool pgtest.DB, newSide func(consumer.Options) side) {
		pgtest.Exec(pool, "drop table processed_events")
		e := newEvent()
		got, err := newSide(consumer.Options{}).handle(t.Context(), e, func(execer) error { t.Error("the effect ran"); return nil })
		need.That(t, got == consumer.Failed && err != nil && strings.Contains(err.Error(), "run Migrate"), "%v, %v; want a failure with a remedy", got, err)
		_, err = newSide(consumer.Options{}).handle(t.Context(), &consumer.Event{}, effect(e))
		need.That(t, errors.Is(err, consumer.ErrInvalid), "an event without an id: %v", err)
	})
}

func TestConsumerNeedsAnID(t *testing.T) {
	c := consumer.New(consumer.Options{})
	_, err := c.Handle(t.Context(), nil, newEvent(), nil)
	need.That(t, errors.Is(err, consumer.ErrInvalid) && strings.Contains(err.Error(), "Options.ID"), "%v", err)
}

// Consumers with one database do not wait for each other, and each handles the event once.
//
// CONTRACT: C-80
// REQUIREMENT: RULE-010-022
func TestConsumersDoNotBlockEachOther(t *testing.T) {
	each(t, func(t *testing.T, pool pgtest.DB, newSide func(consumer.Options) side) {
		billing, mail := newSide(consumer.Options{}), newSide(consumer.Options{ID: "mail", Wait: time.Millisecond})
		e := newEvent()
		got, err := billing.handle(t.Context(), e, func(run execer) error {
			got, err := mail.handle(t.Context(), e, effect(e)) // while billing's record is not committed
			expect(t, got, err, consumer.Handled, nil)
			return effect(e)(run)
		})
		expect(t, got, err, consumer.Handled, nil)
		pgtest.Want(pool, 2, "%d effects of 2 consumers", "select count(*) from effects")
	})
}

// Of two deliveries at the same time one waits: it does nothing when the first commits, and does the work when that
// rolls back. The effect keeps the lock_timeout that it had.
//
// CONTRACT: C-80
// REQUIREMENT: RULE-010-002, RULE-010-012
func TestConcurrentDeliveriesTakeTurns(t *testing.T) {
	for _, test := range []struct {
		first   error
		waits   time.Duration
		want    consumer.Outcome
		wantErr error
	}{
		{nil, time.Minute, consumer.AlreadyHandled, nil},
		{errEffect, time.Minute, consumer.Handled, nil},
		{nil, time.Millisecond, consumer.Failed, consumer.ErrBusy},
	} {
		each(t, func(t *testing.T, pool pgtest.DB, newSide func(consumer.Options) side) {
			c := newSide(consumer.Options{Wait: test.waits})
			e := newEvent()
			var second sync.WaitGroup
			var got consumer.Outcome
			var gotErr error
			_, err := c.handle(t.Context(), e, func(run execer) error {
				check(t, run(`do $$ begin assert current_setting('lock_timeout') = '0', 'lock_timeout was changed'; end $$`))
				check(t, effect(e)(run))
				second.Go(func() { got, gotErr = c.handle(t.Context(), e, effect(e)) })
				if test.wantErr != nil {
					second.Wait()
					return test.first
				}
				for pgtest.Value[int](pool, "select count(*) from pg_locks where not granted and locktype = 'transactionid'"+
					" and pid in (select pid from pg_stat_activity where datname = current_database())") == 0 {
					if t.Context().Err() != nil {
						return t.Context().Err()
					}
				}
				return test.first
			})
			need.That(t, errors.Is(err, test.first), "the first: %v, want %v", err, test.first)
			second.Wait()
			expect(t, got, gotErr, test.want, test.wantErr)
			pgtest.Want(pool, 1, "%d effects, want 1", "select count(*) from effects")
		})
	}
}

// CONTRACT: C-27, C-80
func TestFenceRefusesOlderTokens(t *testing.T) {
	each(t, func(t *testing.T, pool pgtest.DB, newSide func(consumer.Options) side) {
		c := newSide(consumer.Options{Fence: true})
		e := newEvent()
		deliver := func(token int64, effect func(execer) error) (consumer.Outcome, error) {
			again := *e
			again.FencingToken = token
			return c.handle(t.Context(), &again, effect)
		}
		fails := func(execer) error { return errEffect }
		got, err := deliver(9, fails)
		expect(t, got, err, consumer.Failed, errEffect)
		got, err = deliver(8, effect(e)) // it was slow, and the later one is known
		expect(t, got, err, consumer.OlderToken, consumer.ErrOlderToken)
		got, err = deliver(9, fails) // a batch that comes again event by event has the same token
		expect(t, got, err, consumer.Failed, errEffect)
		if n := pgtest.Value[int](pool, "select count(*) from processed_events"); n != 0 {
			t.Fatalf("%d records of an event that was not handled", n)
		}
		got, err = deliver(10, effect(e))
		expect(t, got, err, consumer.Handled, nil)
		// After the effect any delivery is acknowledged: after a crash of the outbox's database tokens may repeat.
		got, err = deliver(8, effect(e))
		expect(t, got, err, consumer.AlreadyHandled, nil)
		pgtest.Want(pool, 10, "the highest token is %d, want 10", "select fencing_token from event_tokens")
	})
}

// A delivery that waited for another sees the tokens that came meanwhile.
//
// CONTRACT: C-27, C-80
func TestFenceSeesTokensThatCameWhileItWaited(t *testing.T) {
	each(t, func(t *testing.T, pool pgtest.DB, newSide func(consumer.Options) side) {
		c := newSide(consumer.Options{Fence: true, Wait: time.Minute})
		e := newEvent()
		var second sync.WaitGroup
		var got consumer.Outcome
		var gotErr error
		_, err := c.handle(t.Context(), e, func(execer) error {
			second.Go(func() {
				later := *e
				later.FencingToken = 8
				got, gotErr = c.handle(t.Context(), &later, effect(e))
			})
			for pgtest.Value[int](pool, "select count(*) from pg_locks where not granted and locktype = 'transactionid'"+
				" and pid in (select pid from pg_stat_activity where datname = current_database())") == 0 {
				if t.Context().Err() != nil {
					return t.Context().Err()
				}
			}
			pgtest.Exec(pool, "update event_tokens set fencing_token = 9")
			return errEffect
		})
		if !errors.Is(err, errEffect) {
			t.Fatal(err)
		}
		second.Wait()
		expect(t, got, gotErr, consumer.OlderToken, consumer.ErrOlderToken)
	})
}

// CONTRACT: C-80
// REQUIREMENT: RULE-010-003
func TestKeysForOutsideCalls(t *testing.T) {
	e := &consumer.Event{ID: uuid.MustParse("0197a1e0-0000-7000-8000-000000000001"), FencingToken: 77}
	if e.IdempotencyKey() != "0197a1e0-0000-7000-8000-000000000001" || e.FencedKey() != "0197a1e0-0000-7000-8000-000000000001-77" {
		t.Errorf("%s, %s", e.IdempotencyKey(), e.FencedKey())
	}
	again := *e
	again.FencingToken = 78
	if again.IdempotencyKey() != e.IdempotencyKey() || again.FencedKey() == e.FencedKey() {
		t.Errorf("at the next delivery: %s, %s", again.IdempotencyKey(), again.FencedKey())
	}
	again.FencingToken = 0
	need.Want(t, again.IdempotencyKey(), "without a token: %s", again.FencedKey())
}

// The table, its key and its index; in a schema with an odd name; by several processes at once.
//
// CONTRACT: C-80
// REQUIREMENT: RULE-010-010
func TestMigrateIsSafeForConcurrentProcesses(t *testing.T) {
	for name, driver := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.Empty(t)
			pool := pgtest.Open(t, dsn)
			pgtest.Exec(pool, `create schema "odd "" one"; create table effects (tracking_id uuid, consumer text)`)
			c := driver(t, dsn, consumer.Options{ID: "billing", Schema: `odd " one`, Fence: true, Logger: quiet})
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					need.Want(t, nil, "%v", c.migrate(t.Context()))
				})
			}
			all.Wait()
			const keys = `select count(*) from pg_index i join pg_attribute a on a.attrelid = i.indexrelid
				where indrelid = '"odd "" one".processed_events'::regclass and indisprimary and attname in ('tracking_id', 'consumer_id')`
			pgtest.Want(pool, 2, "the primary key has %d of 2 ids", keys)
			pgtest.Want(pool, 1, "%d indexes on processed_at", `select count(*) from pg_indexes where indexname = 'idx_processed_events_ttl' and indexdef like '%processed_at%'`)
			e := newEvent()
			got, err := c.handle(t.Context(), e, effect(e))
			expect(t, got, err, consumer.Handled, nil)
			got, err = c.handle(t.Context(), e, effect(e))
			expect(t, got, err, consumer.AlreadyHandled, nil)
			_, err = c.sweep(consumer.Policy{Replay: time.Hour})
			check(t, err)
			e = newEvent() // a pod that starts does not wait for an effect of another
			_, err = c.handle(t.Context(), e, func(execer) error {
				ctx, cancel := context.WithTimeout(t.Context(), need.Wait)
				defer cancel()
				return c.migrate(ctx)
			})
			check(t, err)
		})
	}
}

// A table that a consumer kept by hand gets the column that it lacks, also where all else is there, and keeps its records.
//
// CONTRACT: C-80
func TestMigrateCompletesATableOfOld(t *testing.T) {
	each(t, func(t *testing.T, pool pgtest.DB, newSide func(consumer.Options) side) {
		c, e := newSide(consumer.Options{}), newEvent()
		pgtest.Exec(pool, "insert into processed_events (tracking_id, consumer_id) values ($1, 'billing')", e.ID)
		pgtest.Exec(pool, "alter table processed_events drop column fencing_token")
		check(t, c.migrate(t.Context()))
		got, err := c.handle(t.Context(), e, effect(e))
		expect(t, got, err, consumer.AlreadyHandled, nil)
		e = newEvent()
		got, err = c.handle(t.Context(), e, effect(e))
		expect(t, got, err, consumer.Handled, nil)
	})
}

// A delivery whose time ends is a failure, and leaves nothing.
func TestCancelledDeliveryChangesNothing(t *testing.T) {
	each(t, func(t *testing.T, pool pgtest.DB, newSide func(consumer.Options) side) {
		c := newSide(consumer.Options{})
		e := newEvent()
		ctx, cancel := context.WithCancel(t.Context())
		got, err := c.handle(ctx, e, func(run execer) error {
			check(t, effect(e)(run))
			cancel()
			return nil
		})
		need.That(t, got == consumer.Failed && err != nil, "%v, %v", got, err)
		need.Want(t, 0, "%d rows", pgtest.Value[int](pool, "select count(*) from effects")+pgtest.Value[int](pool, "select count(*) from processed_events"))
	})
}

func ExampleEvent_FencedKey() {
	e := &consumer.Event{ID: uuid.MustParse("0197a1e0-0000-7000-8000-000000000001"), FencingToken: 77}
	fmt.Println("charge once:", e.IdempotencyKey())
	fmt.Println("this delivery:", e.FencedKey())
	// Output:
	// charge once: 0197a1e0-0000-7000-8000-000000000001
	// this delivery: 0197a1e0-0000-7000-8000-000000000001-77
}

var quiet = slog.New(slog.DiscardHandler)

// execer runs a statement in the effect's transaction.
type execer func(statement string, args ...any) error

// side is a consumer of one driver, as a service sees it.
type side struct {
	migrate func(context.Context) error
	handle  func(ctx context.Context, e *consumer.Event, effect func(execer) error) (consumer.Outcome, error)
	sweep   func(consumer.Policy) (int64, error)
	hold    func(name, reason string, everyone bool) error
	release func(name string) error
}

func sideOf[DB, Tx any](t *testing.T, c *consumer.Consumer[DB, Tx], db DB, run func(Tx) execer) side {
	ctx := t.Context()
	return side{
		migrate: func(ctx context.Context) error { return c.Migrate(ctx, db) },
		handle: func(ctx context.Context, e *consumer.Event, effect func(execer) error) (consumer.Outcome, error) {
			return c.Handle(ctx, db, e, func(tx Tx) error { return effect(run(tx)) })
		},
		sweep:   func(p consumer.Policy) (int64, error) { return c.Sweep(ctx, db, p) },
		hold:    func(name, reason string, everyone bool) error { return c.Hold(ctx, db, name, reason, everyone) },
		release: func(name string) error { return c.Release(ctx, db, name) },
	}
}

// drivers make a consumer in the database at dsn.
var drivers = map[string]func(t *testing.T, dsn string, o consumer.Options) side{
	"pgx": func(t *testing.T, dsn string, o consumer.Options) side {
		return sideOf(t, consumer.New(o), consumer.PGX(pgtest.Pool(t, dsn)), func(tx pgx.Tx) execer {
			return func(statement string, args ...any) error {
				_, err := tx.Exec(t.Context(), statement, args...)
				return err
			}
		})
	},
	"database/sql": func(t *testing.T, dsn string, o consumer.Options) side {
		db, err := sql.Open("pgx", dsn)
		check(t, err)
		t.Cleanup(func() { check(t, db.Close()) })
		return sideOf(t, consumer.NewSQL(o), consumer.SQLDB(db), func(tx *sql.Tx) execer {
			return func(statement string, args ...any) error { _, err := tx.Exec(statement, args...); return err }
		})
	},
}

// each runs a test with every driver, in a database with the tables and one for effects.
func each(t *testing.T, test func(t *testing.T, pool pgtest.DB, newSide func(consumer.Options) side)) {
	for name, driver := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.Empty(t)
			pool := pgtest.Open(t, dsn)
			pgtest.Exec(pool, "create table effects (tracking_id uuid, consumer text)")
			pgtest.Exec(pool, consumer.SQL(""))
			test(t, pool, func(o consumer.Options) side {
				if o.ID == "" {
					o.ID = "billing"
				}
				if o.Logger == nil {
					o.Logger = quiet
				}
				return driver(t, dsn, o)
			})
		})
	}
}

// effect is the business effect of an event: a row of table effects, which takes any number of the same.
func effect(e *consumer.Event) func(execer) error {
	return func(run execer) error { return run("insert into effects values ($1, 'billing')", e.ID.String()) }
}

func newEvent() *consumer.Event {
	return &consumer.Event{ID: uuid.Must(uuid.NewV7()), FencingToken: 7, Attempt: 1, EventType: "OrderPlaced", Payload: []byte(`{"order": 42}`)}
}

func check(t testing.TB, err error) {
	t.Helper()
	need.OK(t, err)
}

// expect checks an outcome and its error, where nil is none.
func expect(t *testing.T, got consumer.Outcome, err error, want consumer.Outcome, wantErr error) {
	t.Helper()
	if got != want || !errors.Is(err, wantErr) || wantErr == nil && err != nil {
		t.Fatalf("%v, %v; want %v, %v", got, err, want, wantErr)
	}
}
