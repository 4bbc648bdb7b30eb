package producer_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/outbox-operator/outbox-operator/dispatcher/producer"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

func numberedIn(aggregate, dedupe string) producer.Event {
	return event(func(e *producer.Event) {
		e.AggregateType, e.AggregateID, e.DedupeKey, e.AggregateSequence = "order", aggregate, dedupe, true
	})
}

// A second transaction that numbers an event of the aggregate waits for the first one's end. One of another
// aggregate, and one without a number, do not.
// REQUIREMENT: STORAGE-41
func TestAggregateSequenceTurns(t *testing.T) {
	t.Parallel()
	for name, begin := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.Migrated(t)
			pool := pgtest.Open(t, dsn)
			first := begin(t, dsn)
			_, err := first.enqueue(numberedIn("a", ""))
			check(t, err)
			for _, free := range []producer.Event{numberedIn("b", ""), ofKey("a", false)} {
				other := begin(t, dsn)
				check(t, other.exec(`set local lock_timeout = '10s'`))
				_, err := other.enqueue(free)
				check(t, err)
				check(t, other.rollback())
			}
			second := begin(t, dsn)
			done := make(chan error, 1)
			go func() {
				_, err := second.enqueue(numberedIn("a", ""))
				done <- errors.Join(err, second.commit())
			}()
			for waits := false; !waits; {
				check(t, pool.QueryRow(t.Context(), `select exists (select from pg_locks where not granted and locktype in ('transactionid', 'tuple')
					and pid in (select pid from pg_stat_activity where datname = current_database()))`).Scan(&waits))
				if len(done) > 0 {
					t.Fatalf("the second transaction did not wait: %v", <-done)
				}
			}
			check(t, first.rollback())
			check(t, <-done)
			if n := pgtest.Value[int](pool, `select aggregate_sequence::int from outbox.outbox_events`); n != 1 {
				t.Errorf("after the first transaction's rollback the second one's event has the number %d, want 1", n)
			}
		})
	}
}

// Producers at once, in batches of aggregates in any order, with duplicates and rollbacks: every aggregate has the
// numbers from 1 without a gap, in the order of seq, and no two wait for each other in a circle.
// REQUIREMENT: STORAGE-27
func TestAggregateSequenceIsDense(t *testing.T) {
	t.Parallel()
	pool := pgtest.Open(t, pgtest.Migrated(t))
	outbox := producer.New(producer.Options{})
	aggregates := strings.Split("abcd", "")
	var group errgroup.Group
	for range 6 {
		group.Go(func() error {
			for n := range 30 {
				var batch []producer.Event
				for range 1 + rand.IntN(6) {
					aggregate, key := aggregates[rand.IntN(len(aggregates))], ""
					if rand.IntN(2) == 0 {
						key = fmt.Sprint(aggregate, rand.IntN(20))
					}
					batch = append(batch, numberedIn(aggregate, key))
				}
				tx, err := pool.Begin(t.Context())
				if err != nil {
					return err
				}
				if len(batch) == 1 {
					_, err = outbox.Enqueue(t.Context(), tx, batch[0])
				} else {
					_, err = outbox.EnqueueBatch(t.Context(), tx, batch)
				}
				end := tx.Commit
				if err != nil || n%5 == 0 {
					end = tx.Rollback
				}
				if err := errors.Join(err, end(t.Context())); err != nil {
					return err
				}
			}
			return nil
		})
	}
	check(t, group.Wait())
	const wrong = `select count(*)::int from (
			select aggregate_sequence, row_number() over (partition by aggregate_id order by seq) as nth,
				count(*) over (partition by aggregate_id) as events, last
			from outbox.outbox_events join outbox.outbox_aggregate_sequences using (namespace, aggregate_type, aggregate_id)) as e
		where aggregate_sequence <> nth or events <> last`
	if n := pgtest.Value[int](pool, wrong); n > 0 {
		t.Errorf("%d events have another number than their place in their aggregate", n)
	}
	if n := pgtest.Value[int](pool, `select count(*)::int from outbox.outbox_events where aggregate_sequence > 10`); n == 0 {
		t.Error("no aggregate has more than 10 events")
	}
}

func TestAggregateSequenceNeedsAnAggregate(t *testing.T) {
	t.Parallel()
	for _, e := range []producer.Event{numberedIn("", ""), event(func(e *producer.Event) {
		e.AggregateSequence, e.AggregateType, e.AggregateID = true, strings.Repeat("鍵", 500), strings.Repeat("鍵", 500)
	})} {
		if _, err := producer.New(producer.Options{}).Enqueue(t.Context(), nil, e); !errors.Is(err, producer.ErrInvalid) {
			t.Errorf("%.20s: %v, want ErrInvalid", e.AggregateID, err)
		}
	}
}
