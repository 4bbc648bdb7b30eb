package pgstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// fillKeys commits n due events of a topic, in turn of so many keys, in one statement.
func (o outbox) fillKeys(n, keys int, topic string) {
	o.Helper()
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload)
		select ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'shop', $1, 'key ' || n % $3::integer, '{}'
		from generate_series(1, $2::integer) as n`, topic, n, keys)
}

// ledger is what workers did with the rows of keys.
type ledger struct {
	outbox
	mu    sync.Mutex
	rows  map[string][]uuid.UUID // of each key, by seq
	place map[uuid.UUID]int
	done  map[uuid.UUID]bool // delivered at least once, or dead
	twice int
}

func newLedger(o outbox) *ledger {
	l := &ledger{outbox: o, rows: map[string][]uuid.UUID{}, place: map[uuid.UUID]int{}, done: map[uuid.UUID]bool{}}
	rows, err := o.Query(o.Context(), `select aggregate_id, id from outbox.outbox_events order by seq`)
	if err != nil {
		o.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var key string
		var id uuid.UUID
		if err := rows.Scan(&key, &id); err != nil {
			o.Fatal(err)
		}
		l.place[id] = len(l.rows[key])
		l.rows[key] = append(l.rows[key], id)
	}
	return l
}

// claimed checks that a worker that holds rows of a key holds every row before them that is not done.
func (l *ledger) claimed(events []*dispatcher.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	mine := map[uuid.UUID]bool{}
	for _, e := range events {
		mine[e.ID] = true
	}
	last := map[string]int{}
	for _, e := range events {
		at, key := l.place[e.ID], e.AggregateID
		if before, ok := last[key]; ok && before >= at {
			return fmt.Errorf("row %d of %s came after row %d", at, key, before)
		}
		last[key] = at
		for i, id := range l.rows[key][:at] {
			if mine[id] || l.done[id] {
				continue
			}
			// Another worker may have marked it dead, and not yet committed.
			if l.Row(id).Status != "dead" {
				return fmt.Errorf("row %d of %s was claimed without row %d, which is %+v", at, key, i, l.Row(id))
			}
			l.done[id] = true
		}
	}
	return nil
}

func (l *ledger) note(id uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done[id] {
		l.twice++
	}
	l.done[id] = true
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
			switch rnd.IntN(20) {
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

// Whatever six workers do at the same time, none ever holds a row of a key while an earlier one is live
// and not its own, and every row is done in the end.
// CONTRACT: C-50, C-20, C-22
func TestKeysUnderFire(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	const rows = 1500
	o.fillKeys(rows, 11, "orders")
	book := newLedger(o)
	const left = `select count(*) from outbox.outbox_events where live`
	group, ctx := errgroup.WithContext(t.Context())
	for range 6 {
		store := o.Store("shop", uuid.New())
		rnd := rand.New(rand.NewPCG(rand.Uint64(), 0))
		group.Go(func() error {
			for n := 0; ctx.Err() == nil; n++ {
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
				if err := book.claimed(claimed.Events); err != nil {
					return err
				}
				if err := book.work(ctx, store, claimed.Events, rnd); err != nil {
					return err
				}
				if len(claimed.Events) == 0 && pgtest.Value[int](o, left) == 0 {
					return nil
				}
			}
			return ctx.Err()
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(book.done) != rows || book.twice == 0 {
		t.Errorf("%d of %d rows are done, %d of them more than once; want all, and some", len(book.done), rows, book.twice)
	}
	t.Logf("%d rows done, %d again", rows, book.twice)
}

// A row that another session is about to change ends its key, and is not waited for.
// CONTRACT: C-50
func TestKeysEndAtLocks(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fillKeys(8, 2, "orders") // "key 1" has the rows 1, 3, 5, 7
	for name, test := range map[string]struct{ lock, want []int }{
		"no lock":    {nil, []int{1, 2, 3, 4, 5, 6, 7, 8}},
		"the first":  {[]int{1}, []int{2, 4, 6, 8}},
		"the second": {[]int{3}, []int{1, 2, 4, 6, 8}},
		"the last":   {[]int{7, 8}, []int{1, 2, 3, 4, 5, 6}},
	} {
		tx, err := o.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `select from outbox.outbox_events where seq = any ($1) for update`, test.lock); err != nil {
			t.Fatal(err)
		}
		store := o.Store("shop", uuid.New())
		claimed, err := store.Claim(t.Context(), dispatcher.ClaimRequest{
			Shares: []dispatcher.Share{{Topic: "orders", Limit: 8}}, Lease: time.Minute, MaxAttempts: 10, Keys: &dispatcher.KeyOrder{PerKey: 8},
		})
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, e := range claimed.Events {
			got = append(got, int(e.Seq))
		}
		slices.Sort(got)
		if !slices.Equal(got, test.want) {
			t.Errorf("%s is locked: claimed %v, want %v", name, got, test.want)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Release(t.Context(), returnsOf(claimed.Events)); err != nil {
			t.Fatal(err)
		}
	}
}

// A step of a pass leaves out no row for other workers, who claim elsewhere in the topic.
// CONTRACT: C-50
func TestStepsLeaveOutNothing(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fillKeys(300, 300, "orders")
	tx, err := o.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `select pg_advisory_xact_lock(hashtextextended('orders', hashtextextended('shop', 1)))`); err != nil {
		t.Fatal(err)
	}
	claimed, err := o.Store("shop", uuid.New()).Claim(t.Context(), dispatcher.ClaimRequest{ // the first of a store is a step
		Shares: []dispatcher.Share{{Topic: "orders", Limit: 10}}, Lease: time.Minute, MaxAttempts: 10, Keys: &dispatcher.KeyOrder{PerKey: 1},
	})
	if err != nil || len(claimed.Events) != 10 || claimed.Events[0].Seq != 1 {
		t.Fatalf("the first place is taken: claimed %+v, %v, want the first ten rows", claimed.Events, err)
	}
}

// When a row was tried twice, those behind it are not claimed with it: each failure would release them.
// CONTRACT: C-50
func TestRetriesComeAlone(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fillKeys(5, 1, "orders")
	store := o.Store("shop", uuid.New())
	for try, want := range []int{5, 5, 1, 1} {
		claimed, err := store.Claim(t.Context(), dispatcher.ClaimRequest{
			Shares: []dispatcher.Share{{Topic: "orders", Limit: 10}}, Lease: time.Minute, MaxAttempts: 10, Keys: &dispatcher.KeyOrder{PerKey: 10},
		})
		if err != nil || len(claimed.Events) != want || claimed.Events[0].Seq != 1 {
			t.Fatalf("try %d: claimed %d rows, %v, want %d", try, len(claimed.Events), err, want)
		}
		if _, err := store.Release(t.Context(), returnsOf(claimed.Events[1:])); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Nack(t.Context(), []dispatcher.Failure{{Lease: claimed.Events[0].Lease()}}); err != nil {
			t.Fatal(err)
		}
	}
}

// A dead letter blocks the later rows of its key until it is resolved, in each way in which a claim reads
// keys. What one claim leaves out another may find, so each statement runs by itself.
// CONTRACT: C-50
func TestDeadLettersBlockInEachRead(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Migrated(t))
	for how, read := range map[string]keyedRead{
		"far": {limit: 10}, "near": {limit: 10, near: true}, "dense": {limit: 10, dense: true}, "again": {},
	} {
		for _, test := range []struct {
			what        string
			dead        int64
			resolution  any
			want, dense []int64 // dense takes the first of each key alone
		}{
			{"the first", 1, nil, []int64{2, 4, 6}, []int64{2}},
			{"the first, discarded", 1, "discarded", []int64{2, 3, 4, 5, 6}, []int64{2, 3}},
			{"the second", 3, nil, []int64{1, 2, 4, 6}, []int64{1, 2}},
			{"the second, discarded", 3, "discarded", []int64{1, 2, 4, 5, 6}, []int64{1, 2}},
		} {
			t.Run(how+"/"+test.what, func(t *testing.T) {
				o := outbox{T: t, Pool: pool, stores: pool}
				pgtest.Exec(o, `truncate outbox.outbox_events, outbox.outbox_dead_letters restart identity`)
				o.fillKeys(6, 2, "orders") // "key 1" has the rows 1, 3, 5
				pgtest.Exec(o, `update outbox.outbox_events set status = 'dead', dead_reason = 'poison_message' where seq = $1`, test.dead)
				pgtest.Exec(o, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, seq, key_hash, reason, attempts, resolution, resolved_at, resolved_by)
					select id, namespace, topic, seq, key_hash, dead_reason, 1, $2::text, case when $2 is not null then now() end, case when $2 is not null then 'alice' end
					from outbox.outbox_events where seq = $1`, test.dead, test.resolution)
				want := test.want
				if read.dense {
					want = test.dense
				}
				if got, err := o.claimGated(read); err != nil || !slices.Equal(got, want) {
					t.Errorf("the claim returned the rows %v, %v, want %v", got, err, want)
				}
			})
		}
	}
}
