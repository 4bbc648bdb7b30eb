package consumer_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/outbox-operator/outbox-operator/dispatcher/consumer"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

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
	if err != nil {
		t.Fatal(err)
	}
}

// expect checks an outcome and its error, where nil is none.
func expect(t *testing.T, got consumer.Outcome, err error, want consumer.Outcome, wantErr error) {
	t.Helper()
	if got != want || !errors.Is(err, wantErr) || wantErr == nil && err != nil {
		t.Fatalf("%v, %v; want %v, %v", got, err, want, wantErr)
	}
}
