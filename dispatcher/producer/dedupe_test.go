package producer_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher/producer"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func keyed(key string) producer.Event { return event(func(e *producer.Event) { e.DedupeKey = key }) }

// CONTRACT: C-1, C-11
func TestDedupeKeyEnqueuesOnce(t *testing.T) {
	for name, begin := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.Migrated(t)
			tx := begin(t, dsn)
			first, err := tx.enqueue(keyed("a"), keyed("b"), keyed("a"), event(nil), event(nil))
			check(t, err)
			if !first[0].Enqueued || !first[1].Enqueued || !first[3].Enqueued || !first[4].Enqueued {
				t.Errorf("got %+v for new events, want Inserted", first)
			}
			if first[2].Enqueued || first[2].ID != first[0].ID {
				t.Errorf("the same key twice in a batch: %+v, want the id %s and not enqueued", first[2], first[0].ID)
			}
			check(t, tx.commit())

			tx = begin(t, dsn)
			elsewhere := keyed("a")
			elsewhere.Topic = "refunds"
			again, err := tx.enqueue(keyed("b"), elsewhere)
			check(t, err)
			if again[0].Enqueued || again[0].ID != first[1].ID {
				t.Errorf("the key of a committed event: %+v, want the id %s and not enqueued", again[0], first[1].ID)
			}
			if !again[1].Enqueued {
				t.Error("a key was taken for that of another topic")
			}
			check(t, tx.commit())
			if n := pgtest.Value[int](pgtest.Open(t, dsn), "select count(*) from outbox.outbox_events"); n != 5 {
				t.Errorf("%d rows, want 5", n)
			}
		})
	}
}

// Two transactions with the same key at the same time: the second waits for the first.
// CONTRACT: C-11
func TestConcurrentDedupe(t *testing.T) {
	for _, first := range []string{"commits", "rolls back"} {
		t.Run("the first "+first, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			pool := pgtest.Open(t, pgtest.Migrated(t))
			outbox := producer.New(producer.Options{})
			one, two := begin(t, pool), begin(t, pool)
			winner, err := outbox.Enqueue(ctx, one, keyed("a"))
			check(t, err)

			type outcome struct {
				producer.Receipt
				error
			}
			done := make(chan outcome, 1)
			go func() {
				receipt, err := outbox.Enqueue(ctx, two, keyed("a"))
				done <- outcome{receipt, err}
			}()
			waitUntilBlocked(t, pool, two)
			if first == "commits" {
				check(t, one.Commit(ctx))
			} else {
				check(t, one.Rollback(ctx))
			}
			second := <-done
			check(t, second.error)
			check(t, two.Commit(ctx))
			if first == "commits" && (second.Enqueued || second.ID != winner.ID) {
				t.Errorf("the second got %+v, want the id %s and not enqueued", second.Receipt, winner.ID)
			}
			if first == "rolls back" && (!second.Enqueued || second.ID == winner.ID) {
				t.Errorf("the second got %+v, want a row of its own", second.Receipt)
			}
			if n := pgtest.Value[int](pool, "select count(*) from outbox.outbox_events"); n != 1 {
				t.Errorf("%d rows, want 1", n)
			}
		})
	}
}

func begin(t *testing.T, pool pgtest.DB) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	check(t, err)
	t.Cleanup(func() { tx.Rollback(context.Background()) })
	return tx
}

// waitUntilBlocked returns once the transaction waits for another one's lock. The database says so,
// and each query costs a round trip: there is no need to sleep. The test's deadline ends it.
func waitUntilBlocked(t *testing.T, pool pgtest.DB, tx pgx.Tx) {
	t.Helper()
	pid := tx.Conn().PgConn().PID()
	for blocked := false; !blocked; {
		check(t, pool.QueryRow(t.Context(), "select cardinality(pg_blocking_pids($1)) > 0", pid).Scan(&blocked))
	}
}
