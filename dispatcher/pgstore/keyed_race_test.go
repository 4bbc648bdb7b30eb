package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// gated is a claim in order per key, made to wait for the advisory lock 1 when it has its snapshot and has
// not locked a row yet: whatever reads rows gets its topics or keys from behind the gate.
func gated(t *testing.T, sql string, lists ...string) string {
	t.Helper()
	for _, list := range lists {
		from := "unnest(" + list + ","
		need.Must(t, strings.Contains(sql, from), "the claim has no %q any more: find another place for the gate", from)
		sql = strings.ReplaceAll(sql, "unnest("+list+",", "unnest((select "+list+" from gate),")
	}
	at := strings.Index(sql, "\nwith ") + len("\nwith ")
	return sql[:at] + "gate as materialized (select pg_advisory_xact_lock(1)),\n" + sql[at:]
}

// keyedRead is how a claim finds the first rows of keys.
type keyedRead struct {
	limit int32 // 0 when the keys are read directly
	dense bool
}

// sql is the gated statement, and args are what it is called with, for PerKey 10.
func (r keyedRead) sql(o outbox) (sql string, args []any, err error) {
	args = []any{
		"shop", []string{"orders"}, []int32{r.limit}, []time.Time{{}}, []pgtype.UUID{{Valid: true}}, 10, 1 << 20, uuid.NewString(), time.Minute, false, 1 << 20,
		(*time.Duration)(nil), true, []int64{}, []int64{}, "",
	}
	if r.dense {
		return gated(o.T, pgstore.ClaimDenseSQL(), "$2::text[]"), args, nil
	}
	var ranges, keys []int64
	var rows []int32
	if r.limit == 0 {
		hashes := `select array_agg(distinct key_hash) from outbox.outbox_events where key_hash is not null`
		if err := o.QueryRow(o.Context(), hashes).Scan(&keys); err != nil {
			return "", nil, err
		}
		ranges, rows = slices.Repeat([]int64{1}, len(keys)), slices.Repeat([]int32{10}, len(keys))
	}
	args = append(args, []int32{50}, 10, ranges, keys, rows, []bool{false})
	return gated(o.T, pgstore.ClaimKeyedSQL(), "$2::text[]", "$19::bigint[]"), args, nil
}

// claimGated runs the gated claim, and returns the seq of the rows that it returned, in order.
func (o outbox) claimGated(read keyedRead) (seqs []int64, err error) {
	sql, args, err := read.sql(o)
	if err != nil {
		return nil, err
	}
	err = pgx.BeginFunc(o.Context(), o.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(o.Context(), pgstore.Settings); err != nil {
			return err
		}
		claimed, err := tx.Query(o.Context(), sql, args...)
		if err != nil {
			return err
		}
		events, err := pgx.CollectRows(claimed, pgx.RowToMap)
		for _, e := range events {
			seqs = append(seqs, e["seq"].(int64))
		}
		slices.Sort(seqs)
		return err
	})
	return seqs, err
}

// claimAround runs the gated claim, and does something while it waits with its snapshot.
func (o outbox) claimAround(read keyedRead, meanwhile func()) (seqs []int64, err error) {
	o.Helper()
	gate, err := o.Begin(o.Context())
	if err != nil {
		return nil, err
	}
	defer func() { _ = gate.Rollback(o.Context()) }()
	if _, err := gate.Exec(o.Context(), `select pg_advisory_xact_lock(1)`); err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() {
		var err error
		seqs, err = o.claimGated(read)
		done <- err
	}()
	for !pgtest.Value[bool](o, `select exists (select from pg_locks where locktype = 'advisory' and not granted
			and database = (select oid from pg_database where datname = current_database()))`) {
		if len(done) > 0 {
			o.Fatalf("the claim did not wait: %v", <-done)
		}
	}
	meanwhile()
	err = gate.Rollback(o.Context())
	err = errors.Join(err, <-done)
	return seqs, err
}

// Between a claim's snapshot and its locks, another worker may take the first row of a key, and give it
// back or not. The claim takes nothing of that key then, however it reads: the snapshot's version of the
// first row is not to be had, and those behind it do not go without it.
//
// PostgreSQL looks at the ctid of a changed row again only from 14.20, 15.15, 16.11 and 17.7 on. Before, a row that
// is far or read again is as the other worker left it, and is dropped by "row = locked" alone.
// CONTRACT: C-50, C-20
func TestKeysWhoseFirstRowChangedAreLeft(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Migrated(t))
	changes := map[string]func(dispatcher.Store, dispatcher.Lease) (lost []dispatcher.Lease, err error){
		"unchanged": nil,
		"released": func(s dispatcher.Store, lease dispatcher.Lease) ([]dispatcher.Lease, error) {
			return s.Release(t.Context(), []dispatcher.Return{{Lease: lease}})
		},
		"failed": func(s dispatcher.Store, lease dispatcher.Lease) ([]dispatcher.Lease, error) {
			return s.Nack(t.Context(), []dispatcher.Failure{{Lease: lease}})
		},
		"expired": func(s dispatcher.Store, lease dispatcher.Lease) ([]dispatcher.Lease, error) {
			return s.Extend(t.Context(), []dispatcher.Lease{lease}, -time.Hour)
		},
		"leased": func(dispatcher.Store, dispatcher.Lease) ([]dispatcher.Lease, error) { return nil, nil },
		"delivered": func(s dispatcher.Store, lease dispatcher.Lease) ([]dispatcher.Lease, error) {
			return s.Ack(t.Context(), []dispatcher.Lease{lease})
		},
	}
	for how, read := range map[string]keyedRead{
		"far": {limit: 10}, "dense": {limit: 10, dense: true}, "again": {},
	} {
		for what, change := range changes {
			t.Run(how+"/"+what, func(t *testing.T) {
				o := outbox{T: t, Pool: pool, stores: pool}
				pgtest.Exec(o, `truncate outbox.outbox_events restart identity`)
				o.fillKeys(6, 2, "orders") // "key 1" has the rows 1, 3, 5
				want, changed := []int64{1, 2, 3, 4, 5, 6}, []int64{2, 4, 6}
				if read.dense { // the first of each key
					want, changed = []int64{1, 2}, []int64{2}
				}
				got, err := o.claimAround(read, func() {
					if change == nil {
						return
					}
					want = changed
					store := o.Store("shop", uuid.New())
					other, err := store.Claim(t.Context(), inOrder("orders", 1, 1))
					need.Must(t, err == nil && len(other.Events) == 1 && other.Events[0].Seq == 1, "the other worker claimed %+v, %v, want row 1", other.Events, err)
					if lost, err := change(store, other.Events[0].Lease()); err != nil || len(lost) > 0 {
						t.Fatalf("lost %v, %v", lost, err)
					}
				})
				need.That(t, err == nil && slices.Equal(got, want), "the claim returned the rows %v, %v, want %v", got, err, want)
			})
		}
	}
}

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
func TestKeysUnderFireKeepTheirOrder(t *testing.T) {
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
	need.OK(t, group.Wait())
	rows := pgtest.Value[int](o, `select count(*) from outbox.outbox_events`)
	need.That(t, len(book.byID) == rows && book.twice != 0, "%d of %d rows are known, %d were done more than once; want all, and some", len(book.byID), rows, book.twice)
	t.Logf("%d rows done, %d again", rows, book.twice)
}

// hold keeps a snapshot of the database, as a long report does, until the test ends.
func (o outbox) hold() {
	o.Helper()
	tx, err := o.BeginTx(o.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err == nil {
		_, err = tx.Exec(o.Context(), `select from outbox.outbox_workers`)
	}
	need.OK(o, err)
	o.Cleanup(func() { _ = tx.Rollback(o.Context()) }) //nolint:usetesting // its end is the test's
}

// fetched is how many buffers of the outbox were read so far. A backend reports what it read when it ends, so all do.
func (o outbox) fetched() int {
	o.Helper()
	o.stores.Reset()
	o.Reset()
	pgtest.Eventually(o, "one connection", func() bool {
		return pgtest.Value[int](o, `select count(*) from pg_stat_activity where datname = current_database() and state = 'idle'`) == 0
	})
	return pgtest.Value[int](o, `select sum(pg_stat_get_blocks_fetched(oid)) from pg_class
		where relnamespace = 'outbox'::regnamespace and relkind in ('r', 'i')`)
}

// keyedCost is how many buffers claims of a backlog read after so many deliveries of each of its keys: one of a row of each
// key, and one of a single row.
func (o outbox) keyedCost(keys, delivered int) (many, one float64) {
	o.Helper()
	const rounds, measured = 10, 5
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload, next_attempt_at)
		select gen_random_uuid(), 'shop', 'orders', 'key ' || n % $1, '{}', now() - interval '1 hour' + n * interval '1 ms'
		from generate_series(0, $1::integer * $2::integer - 1) as n`, keys, delivered+rounds+2)
	pgtest.Exec(o, `update outbox.outbox_events set status = 'delivered' where seq <= $1`, keys*delivered)
	store := o.Store("shop", uuid.New())
	round := func(limit int) (buffers float64) {
		req := inOrder("orders", limit, 1)
		before := o.fetched()
		claimed, err := store.Claim(o.Context(), req)
		need.Must(o, err == nil && len(claimed.Events) == limit, "%d rows were claimed, %v, want %d", len(claimed.Events), err, limit)
		buffers = float64(o.fetched() - before)
		pgstore.NoPass(store)
		acked(o, store, claimed.Events)
		return buffers
	}
	for n := range rounds {
		if b := round(keys); n >= rounds-measured {
			many += b / measured
		}
	}
	for range measured {
		one += round(1) / measured
	}
	return many, one
}

// While a snapshot keeps vacuum from removing what was delivered, a claim reads at most half as much again as on a fresh
// table: what a worker has seen of a key once, it does not read again.
// CONTRACT: C-50
func TestKeyedClaimsUnderAHeldSnapshotReadLittle(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	for _, keys := range []int{100, 500} {
		t.Run(fmt.Sprint(keys, " keys"), func(t *testing.T) {
			t.Parallel()
			cost := func(delivered int) (many, one float64) {
				o := newOutbox(t, pgtest.Migrated(t))
				pgtest.Exec(o, `alter table outbox.outbox_events set (autovacuum_enabled = off)`)
				o.stores = pgtest.Pool(t, o.Config().ConnString()+"&pool_max_conns=1")
				o.hold()
				return o.keyedCost(keys, delivered)
			}
			fresh, freshOne := cost(0)
			held, heldOne := cost(100_000 / keys)
			t.Logf("a claim of %d rows reads %.0f buffers on a fresh table, and %.0f after 100,000 deliveries; one of a row %.0f and %.0f",
				keys, fresh, held, freshOne, heldOne)
			need.That(t, held <= 1.5*fresh && heldOne <= 1.5*freshOne,
				"after 100,000 deliveries a claim reads %.0f buffers instead of %.0f, and one of a row %.0f instead of %.0f", held, fresh, heldOne, freshOne)
		})
	}
}
