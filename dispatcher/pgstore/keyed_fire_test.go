package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// ledger is what producers committed, and what workers did with it. It knows nothing of how claims find their rows.
type ledger struct {
	outbox
	mu    sync.Mutex
	now   int // rises with each commit
	rows  map[string][]*entry
	byID  map[uuid.UUID]*entry
	twice int
}

// entry is a row. It counts for claims that began after its commit.
type entry struct {
	id        uuid.UUID
	seq       int64
	committed int
	done      bool // delivered at least once, or dead
}

func (l *ledger) at() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// commit notes a row that was committed, and perhaps done meanwhile.
func (l *ledger) commit(key string, e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now++
	e.committed, e.done = l.now, l.byID[e.id] != nil
	l.rows[key], l.byID[e.id] = append(l.rows[key], e), e
}

// claimed checks that a worker that holds rows of a key holds every row before them that was live when its claim began.
func (l *ledger) claimed(events []*dispatcher.Event, began int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	mine := map[uuid.UUID]bool{}
	for _, e := range events {
		mine[e.ID] = true
	}
	last := map[string]int64{}
	for _, e := range events {
		if e.Seq <= last[e.AggregateID] {
			return fmt.Errorf("row %d of %s came after row %d", e.Seq, e.AggregateID, last[e.AggregateID])
		}
		last[e.AggregateID] = e.Seq
		for _, before := range l.rows[e.AggregateID] {
			if before.seq >= e.Seq || before.committed > began || before.done || mine[before.id] {
				continue
			}
			// Another worker may have marked it dead, and not yet noted that.
			if row := l.Row(before.id); row.Status != "dead" {
				return fmt.Errorf("row %d of %s was claimed without row %d, which is %+v", e.Seq, e.AggregateID, before.seq, row)
			}
			before.done = true
		}
	}
	return nil
}

func (l *ledger) note(id uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.byID[id]
	if e == nil { // its producer has not noted the commit
		e = &entry{}
		l.byID[id] = e
	}
	if e.done {
		l.twice++
	}
	e.done = true
}

// work does with a claim's rows what workers do, and what becomes of them: it delivers, fails, gives
// back, stops, loses its leases, and crashes between the delivery and the ack.
func (l *ledger) work(ctx context.Context, store dispatcher.Store, events []*dispatcher.Event, rnd *rand.Rand) error {
	byKey := map[string][]*dispatcher.Event{}
	for _, e := range events {
		byKey[e.AggregateID] = append(byKey[e.AggregateID], e)
	}
	for _, events := range byKey {
		for i, e := range events {
			lease := []dispatcher.Lease{e.Lease()}
			var err error
			ok := false
			switch rnd.IntN(30) {
			case 0: // fails, and is retried soon
				_, err = store.Nack(ctx, []dispatcher.Failure{{Lease: e.Lease(), Delay: time.Duration(rnd.IntN(3)) * time.Millisecond}})
			case 1: // crashed before the delivery
				_, err = store.Extend(ctx, lease, time.Microsecond)
			case 2: // crashed after it
				l.note(e.ID)
				_, err = store.Extend(ctx, lease, time.Microsecond)
			case 3: // the ack is late: others may deliver it again meanwhile
				l.note(e.ID)
				_, err = store.Extend(ctx, lease, time.Millisecond)
				ok = true
			case 4:
				l.note(e.ID)
				_, err = store.Nack(ctx, []dispatcher.Failure{{Lease: e.Lease(), Reason: dispatcher.ReasonPermanentFailure}})
				ok = true
			default:
				l.note(e.ID)
				_, err = store.Ack(ctx, lease)
				ok = true
			}
			if err != nil {
				return err
			}
			if ok {
				continue
			}
			// Those behind it go back, or their leases expire too.
			for _, e := range events[i+1:] {
				if rnd.IntN(2) == 0 {
					_, err = store.Release(ctx, []dispatcher.Return{{Lease: e.Lease()}})
				} else {
					_, err = store.Extend(ctx, []dispatcher.Lease{e.Lease()}, time.Microsecond)
				}
				if err != nil {
					return err
				}
			}
			break
		}
	}
	return nil
}

// produce commits rows of random keys in transactions that take different times, so that seq and the order of commits
// differ, some for later, and rolls some back. Now and then it replays a dead row.
func (l *ledger) produce(ctx context.Context, transactions, keys int, rnd *rand.Rand) error {
	for range transactions {
		tx, err := l.Begin(ctx)
		if err != nil {
			return err
		}
		added := map[string]*entry{}
		for range 1 + rnd.IntN(3) {
			key, e := fmt.Sprint("key ", rnd.IntN(keys)), &entry{id: uuid.New()}
			if added[key] != nil {
				continue
			}
			added[key] = e
			delay := []time.Duration{0, 0, 0, 0, 0, 0, 0, 0, 0, 400 * time.Millisecond}[rnd.IntN(10)]
			if err = tx.QueryRow(ctx, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload, next_attempt_at)
				values ($1, 'shop', 'orders', $2, '{}', now() + $3::interval) returning seq`, e.id, key, delay).Scan(&e.seq); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, `select pg_sleep($1)`, []float64{0, 0, 0.001, 0.01, 0.1}[rnd.IntN(5)]); err != nil {
			return err
		}
		if rnd.IntN(10) == 0 {
			if err := tx.Rollback(ctx); err != nil {
				return err
			}
			continue
		}
		if err := tx.Commit(ctx); err != nil {
			return err
		}
		for key, e := range added {
			l.commit(key, e)
		}
		if rnd.IntN(10) == 0 {
			if err := l.replay(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// replay puts a dead row back.
func (l *ledger) replay(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var id uuid.UUID
	err := l.QueryRow(ctx, `with dead_letter as (
			update outbox.outbox_dead_letters set resolution = 'replayed', resolved_at = now(), resolved_by = 'test'
			where id = (select min(id) from outbox.outbox_dead_letters where resolution is null) and resolution is null returning event_id)
		update outbox.outbox_events set status = 'pending', attempts = 0, next_attempt_at = now() + interval '300 ms', dead_reason = null
		where id in (select event_id from dead_letter) and status = 'dead' returning id`).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if e := l.byID[id]; e != nil {
		l.now++
		e.committed, e.done = l.now, false
	}
	return err
}

// Whatever three workers do at the same time, none ever claims a row of a key while an earlier one is live and not its own:
// also with producers that commit late, with replays, with workers that are killed, and while a snapshot holds vacuum
// back. Every row is done in the end.
// CONTRACT: C-50, C-20, C-22
func TestKeysUnderFire(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.hold()
	const keys, producers, transactions = 5, 4, 250
	book := &ledger{outbox: o, rows: map[string][]*entry{}, byID: map[uuid.UUID]*entry{}}
	const left = `select count(*) from outbox.outbox_events where live`
	group, ctx := errgroup.WithContext(t.Context())
	produced := make(chan struct{}, producers)
	for range producers {
		rnd := rand.New(rand.NewPCG(rand.Uint64(), 0))
		group.Go(func() error {
			defer func() { produced <- struct{}{} }()
			return book.produce(ctx, transactions, keys, rnd)
		})
	}
	for range 3 {
		rnd := rand.New(rand.NewPCG(rand.Uint64(), 0))
		group.Go(func() error {
			store := o.Store("shop", uuid.New())
			for ctx.Err() == nil {
				if rnd.IntN(500) == 0 { // it was killed, and another comes that remembers nothing
					store = o.Store("shop", uuid.New())
				}
				last, began := len(produced) == producers, book.at()
				claimed, err := store.Claim(ctx, dispatcher.ClaimRequest{
					Shares: []dispatcher.Share{{Topic: "orders", Limit: 1 + rnd.IntN(40)}}, Lease: time.Minute, MaxAttempts: 12,
					Keys: &dispatcher.KeyOrder{PerKey: 1 + rnd.IntN(10)},
				})
				if err != nil {
					return err
				}
				for _, d := range claimed.Dead {
					book.note(d.ID)
				}
				if err := book.claimed(claimed.Events, began); err != nil {
					return err
				}
				if err := book.work(ctx, store, claimed.Events, rnd); err != nil {
					return err
				}
				if last && len(claimed.Events) == 0 && pgtest.Value[int](o, left) == 0 {
					return nil
				}
			}
			return ctx.Err()
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	rows := pgtest.Value[int](o, `select count(*) from outbox.outbox_events`)
	if len(book.byID) != rows || book.twice == 0 {
		t.Errorf("%d of %d rows are known, %d were done more than once; want all, and some", len(book.byID), rows, book.twice)
	}
	t.Logf("%d rows done, %d again", rows, book.twice)
}
