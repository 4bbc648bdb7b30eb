package producer_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-operator/outbox-operator/dispatcher/producer"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func ofKey(key string, lock bool) producer.Event {
	return event(func(e *producer.Event) { e.AggregateID, e.LockKey = key, lock })
}

// With LockKey the second transaction of a key waits for the first one's commit, and its event comes
// behind. Other keys, and producers without the option, do not wait.
// CONTRACT: C-50
func TestLockKey(t *testing.T) {
	t.Parallel()
	for name, begin := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.Migrated(t)
			pool := pgtest.Open(t, dsn)
			first := begin(t, dsn)
			_, err := first.enqueue(ofKey("a", true))
			check(t, err)
			for _, free := range []producer.Event{ofKey("b", true), ofKey("a", false), event(func(e *producer.Event) {
				e.Topic, e.AggregateID, e.LockKey = "refunds", "a", true
			})} {
				other := begin(t, dsn)
				check(t, other.exec(`set local lock_timeout = '10s'`))
				_, err := other.enqueue(free)
				check(t, err)
				check(t, other.rollback())
			}
			second := begin(t, dsn)
			done := make(chan error, 1)
			go func() {
				_, err := second.enqueue(ofKey("a", true))
				done <- errors.Join(err, second.commit())
			}()
			for waits := false; !waits; {
				check(t, pool.QueryRow(t.Context(), `select exists (select from pg_locks where locktype = 'advisory' and not granted
					and database = (select oid from pg_database where datname = current_database()))`).Scan(&waits))
				if len(done) > 0 {
					t.Fatalf("the second transaction did not wait: %v", <-done)
				}
			}
			_, err = first.enqueue(event(func(e *producer.Event) { e.EventType, e.PartitionKey, e.LockKey = "last of the first", "a", true }))
			check(t, err)
			check(t, first.commit())
			check(t, <-done)
			rows, err := pool.Query(t.Context(), `select coalesce(event_type, '') from outbox.outbox_events order by seq`)
			check(t, err)
			types, err := pgx.CollectRows(rows, pgx.RowTo[string])
			check(t, err)
			if want := []string{"", "last of the first", ""}; !slices.Equal(types, want) {
				t.Errorf("the events are in the order %q, want the second transaction's behind both of the first", types)
			}
		})
	}
}

// Batches of the same keys in any order never wait for each other in a circle, and keep the order
// within a key; receipts are in the order of the events.
// CONTRACT: C-50
func TestLockKeyBatches(t *testing.T) {
	t.Parallel()
	pool := pgtest.Open(t, pgtest.Migrated(t))
	outbox := producer.New(producer.Options{})
	var group errgroup.Group
	for worker := range 4 {
		group.Go(func() error {
			for n := range 25 {
				var batch []producer.Event
				for i := range 6 {
					e := ofKey(fmt.Sprint("key ", i%3), true)
					if worker%2 == 0 {
						e = ofKey(fmt.Sprint("key ", 2-i%3), true)
					}
					e.EventType = fmt.Sprintf("%d-%d-%d", worker, n, i)
					batch = append(batch, e)
				}
				err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					receipts, err := outbox.EnqueueBatch(t.Context(), tx, batch)
					for i, r := range receipts {
						var kind string
						if err := tx.QueryRow(t.Context(), `select event_type from outbox.outbox_events where id = $1`, r.ID).Scan(&kind); err != nil {
							return err
						} else if kind != batch[i].EventType {
							return fmt.Errorf("receipt %d is of event %s, want %s", i, kind, batch[i].EventType)
						}
					}
					return err
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	check(t, group.Wait())
	wrong := pgtest.Value[int](pool, `select count(*) from outbox.outbox_events a join outbox.outbox_events b using (key_hash)
		where a.xmin = b.xmin and a.seq < b.seq and a.event_type > b.event_type`)
	if wrong > 0 {
		t.Errorf("%d pairs of events of one key and batch changed places", wrong)
	}
}

func TestLockKeyNeedsAKey(t *testing.T) {
	t.Parallel()
	_, err := producer.New(producer.Options{}).Enqueue(t.Context(), nil, ofKey("", true))
	if !errors.Is(err, producer.ErrInvalid) {
		t.Errorf("LockKey without a key gave %v, want ErrInvalid", err)
	}
}
