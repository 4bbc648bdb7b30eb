package pgstore_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// fillKeys commits n due events of a topic, with its keys in turn, in one statement.
func (o outbox) fillKeys(n, keys int, topic string) {
	o.Helper()
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload)
		select ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'shop', $1, 'key ' || n % $3::integer, '{}'
		from generate_series(1, $2::integer) as n`, topic, n, keys)
}

// A row that another session is about to change ends its key, and is not waited for.
// CONTRACT: C-50
func TestLockedRowEndsItsKey(t *testing.T) {
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
		need.OK(t, err)
		need.OK(t, need.Err(tx.Exec(t.Context(), `select from outbox.outbox_events where seq = any ($1) for update`, test.lock)))
		store := o.Store("shop", uuid.New())
		claimed := claimInOrder(t, store, 8, 8)
		var got []int
		for _, e := range claimed.Events {
			got = append(got, int(e.Seq))
		}
		slices.Sort(got)
		need.WantAll(t, test.want, "%s is locked: claimed %v, want %v", got, name)
		need.OK(t, tx.Rollback(t.Context()))
		need.OK(t, need.Err(store.Release(t.Context(), returnsOf(claimed.Events))))
	}
}

// A step of a pass leaves out no row for other workers, who claim elsewhere in the topic.
// CONTRACT: C-50
func TestStepsLeaveOutNothing(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fillKeys(300, 300, "orders")
	pgtest.Begin(o, `select pg_advisory_xact_lock(hashtextextended('orders', hashtextextended('shop', 1)))`)
	claimed, err := o.Store("shop", uuid.New()).Claim(t.Context(), inOrder("orders", 10, 1)) // the first of a store is a step
	need.Must(t, err == nil && len(claimed.Events) == 10 && claimed.Events[0].Seq == 1, "the first place is taken: claimed %+v, %v, want the first ten rows", claimed.Events, err)
}

// When a row was tried twice, those behind it are not claimed with it: each failure would release them.
// CONTRACT: C-50
func TestRetriesComeAlone(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fillKeys(5, 1, "orders")
	store := o.Store("shop", uuid.New())
	for try, want := range []int{5, 5, 1, 1} {
		claimed, err := store.Claim(t.Context(), inOrder("orders", 10, 10))
		need.Must(t, err == nil && len(claimed.Events) == want && claimed.Events[0].Seq == 1, "try %d: claimed %d rows, %v, want %d", try, len(claimed.Events), err, want)
		need.OK(t, need.Err(store.Release(t.Context(), returnsOf(claimed.Events[1:]))))
		need.OK(t, need.Err(store.Nack(t.Context(), []dispatcher.Failure{{Lease: claimed.Events[0].Lease()}})))
	}
}

// A dead letter blocks the later rows of its key until it is resolved, in each way in which a claim reads
// keys. What one claim leaves out another may find, so each statement runs by itself.
// CONTRACT: C-50
func TestDeadLettersBlockInEachRead(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Migrated(t))
	for how, read := range map[string]keyedRead{
		"far": {limit: 10}, "dense": {limit: 10, dense: true}, "again": {},
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
				got, err := o.claimGated(read)
				need.That(t, err == nil && slices.Equal(got, want), "the claim returned the rows %v, %v, want %v", got, err, want)
			})
		}
	}
}

// deliverKeys commits and delivers rows of 60 keys, several times: after that the store has looked at the open
// transactions, and remembers of each key what it can.
func (o outbox) deliverKeys(store dispatcher.Store) {
	o.Helper()
	const keys = 60
	for range 3 {
		o.fillMore(keys)
		claimed := o.claimKeys(store, keys)
		need.Must(o, len(claimed) == keys, "%d rows were claimed, want %d", len(claimed), keys)
		acked(o, store, claimed)
	}
}

// fillMore commits a row of each key.
func (o outbox) fillMore(keys int) {
	o.Helper()
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload)
		select gen_random_uuid(), 'shop', 'orders', 'key ' || n, '{}' from generate_series(1, $1::integer) as n`, keys)
}

func (o outbox) claimKeys(store dispatcher.Store, limit int) []*dispatcher.Event {
	o.Helper()
	return claimInOrder(o, store, limit, 1).Events
}

// claimInOrder claims rows of the topic orders in order per key.
func claimInOrder(t testing.TB, store dispatcher.Store, limit, perKey int) dispatcher.Claimed {
	t.Helper()
	claimed, err := store.Claim(t.Context(), inOrder("orders", limit, perKey))
	need.OK(t, err)
	return claimed
}

// acked marks rows delivered, all of whose leases the worker holds.
func acked(t testing.TB, store dispatcher.Store, events []*dispatcher.Event) {
	t.Helper()
	lost, err := store.Ack(t.Context(), leasesOf(events))
	need.Must(t, err == nil && len(lost) == 0, "lost %v, %v", lost, err)
}

// A row that becomes live behind the back of a worker that remembers its key, with a seq below what it has delivered, holds
// up the later rows of the key all the same. It is not due, so that no range has it.
// CONTRACT: C-50
func TestRowsThatBecomeLiveLateHoldUpTheirKey(t *testing.T) {
	t.Parallel()
	const late = `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload, next_attempt_at)
		overriding system value select gen_random_uuid(), 'shop', 'orders', 'key 1', '{}', now() + interval '1 hour'`
	for name, test := range map[string]struct {
		before, between, after string // in one transaction; there are deliveries after the first two
		crash                  bool
	}{
		"committed late":                    {before: late, after: `select`},
		"a number drawn, and inserted late": {before: `select nextval('outbox.outbox_events_seq_seq')`, after: `insert into outbox.outbox_events (id, seq, namespace, topic, aggregate_id, payload, next_attempt_at) overriding system value select gen_random_uuid(), currval('outbox.outbox_events_seq_seq'), 'shop', 'orders', 'key 1', '{}', now() + interval '1 hour'`},
		"prepared":                          {before: late, between: `prepare transaction 'late'`, after: `commit prepared 'late'`},
		"replayed": {after: `update outbox.outbox_dead_letters set resolution = 'replayed', resolved_at = now(), resolved_by = 'test';
			update outbox.outbox_events set status = 'pending', dead_reason = null, next_attempt_at = now() + interval '1 hour' where status = 'dead'`},
		"a number that a crash forgot": {crash: true, after: `select setval('outbox.outbox_events_seq_seq', 1, false); ` + late + `; select setval('outbox.outbox_events_seq_seq', 100000)`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, pgtest.Migrated(t))
			var srv interface {
				Kill()
				Restart(context.Context) error
			}
			if test.crash || name == "prepared" {
				p, s := newServer(t)
				pgtest.Exec(p, `alter system set max_prepared_transactions = 5`)
				s.Kill()
				need.OK(t, s.Restart(t.Context()))
				o, srv = newOutbox(t, p.Config().ConnString()), s
			}
			store := o.Store("shop", uuid.New())
			dead := uuid.New()
			if name == "replayed" {
				pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload) values ($1, 'shop', 'orders', 'key 1', '{}')`, dead)
				e := o.claimKeys(store, 1)
				need.OK(t, need.Err(store.Nack(t.Context(), []dispatcher.Failure{{Lease: e[0].Lease(), Reason: dispatcher.ReasonPoisonMessage}})))
			}
			connect := func() *pgx.Conn {
				conn, err := pgx.Connect(t.Context(), o.Config().ConnString())
				need.OK(t, err)
				return conn
			}
			conn, other := connect(), connect()
			defer func() {
				_ = conn.Close(context.Background())
				_ = other.Close(context.Background())
			}()
			run := func(sql string) {
				t.Helper()
				need.OK(t, need.Err(conn.PgConn().Exec(t.Context(), sql).ReadAll()))
			}
			need.OK(t, need.Err(other.Exec(t.Context(), `begin`)))
			need.OK(t, need.Err(other.Exec(t.Context(), `select nextval('outbox.outbox_events_seq_seq')`)))
			o.deliverKeys(store)
			if test.before != "" {
				run("begin; " + test.before)
			}
			o.deliverKeys(store)
			if _, err := other.Exec(t.Context(), `rollback`); err != nil { // the store waited for it, and now knows the late one
				t.Fatal(err)
			}
			o.deliverKeys(store)
			run(test.between)
			o.deliverKeys(store)
			if test.crash {
				pgtest.Exec(o, `comment on table outbox.outbox_events is 'a commit that waits for the disk, and all before it'`)
				srv.Kill()
				need.OK(t, srv.Restart(t.Context()))
				o.Reset()
				conn = connect()
			}
			run(test.after)
			if test.before != "" && name != "prepared" {
				run("commit")
			}
			o.fillMore(2)
			pgstore.NoPass(store)
			claimed := o.claimKeys(store, 10)
			if len(claimed) != 1 || claimed[0].AggregateID != "key 2" {
				t.Errorf("claimed %s, want the row of key 2 alone", describe(claimed))
			}
		})
	}
}

func describe(events []*dispatcher.Event) (out []string) {
	for _, e := range events {
		out = append(out, fmt.Sprintf("%d of %s", e.Seq, e.AggregateID))
	}
	return out
}

// A claim that gives up its search says so, and whoever continues finds every row.
// CONTRACT: C-50
func TestUnfinishedSearchIsContinued(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fillKeys(350, 350, "orders")
	pgtest.Exec(o, `update outbox.outbox_events set aggregate_id = 'key 1' where seq <= 200`)
	pgtest.Exec(o, `update outbox.outbox_events set key_hash = outbox.outbox_key_hash(namespace, topic, partition_key, aggregate_id)`)
	held := claimInOrder(o, o.Store("shop", uuid.New()), 1, 1)
	need.That(t, held.Leased() == 1 && held.Events[0].Seq == 1, "another worker holds %s, want the row for which 199 wait", describe(held.Events))
	store := o.Store("shop", uuid.New())
	pgstore.GiveUpSearches(store)
	got, gaveUp := 0, 0
	for got < 150 && gaveUp < 1000 {
		claimed := claimInOrder(o, store, 10, 4)
		if claimed.Leased() == 0 {
			need.That(t, claimed.Unfinished, "a claim found none of %d rows, and does not say that it gave up", 150-got)
			gaveUp++
			continue
		}
		got += claimed.Leased()
		need.OK(t, need.Err(store.Ack(o.Context(), leasesOf(claimed.Events))))
	}
	need.That(t, got == 150 && gaveUp != 0, "%d of 150 rows were found, and %d searches were given up", got, gaveUp)
}

// trips counts round trips: each is a batch. It counts the claims in them that were made by claim_dense.sql,
// too, and those that were not.
type trips struct{ n, dense, keyed atomic.Int64 }

func (c *trips) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.n.Add(1)
	return ctx
}
func (c *trips) TraceBatchQuery(_ context.Context, _ *pgx.Conn, q pgx.TraceBatchQueryData) {
	switch q.SQL {
	case pgstore.ClaimDenseSQL():
		c.dense.Add(1)
	case pgstore.ClaimKeyedSQL():
		c.keyed.Add(1)
	}
}
func (*trips) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
func (*trips) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (*trips) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// count makes the stores count their round trips.
func (o *outbox) count() *trips {
	o.Helper()
	var c trips
	cfg := o.stores.Config()
	cfg.ConnConfig.Tracer = &c
	pool, err := pgxpool.NewWithConfig(o.Context(), cfg)
	need.OK(o, err)
	o.Cleanup(pool.Close)
	o.stores = pool
	return &c
}

// While all that is due waits for what another worker holds, a claim looks at it once and returns: it does
// not go round and round: it looks from its floor, each time at four times as many rows, and in two or three
// steps from the front. How these take turns depends on the time they take, so the statements of ten claims count.
// (The rows are in no order of seq, so the first of a key may be anywhere.)
// CONTRACT: C-50
func TestClaimsThatWaitTakeFewStatements(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		rows []int // of each topic
		age  string
		most int64 // statements of a claim, on average
	}{
		{[]int{10}, "0", 2}, {[]int{10}, "1 minute", 2},
		{[]int{100}, "0", 5}, {[]int{100}, "1 minute", 5},
		{[]int{1000}, "0", 6}, {[]int{1000}, "1 minute", 6},
		{[]int{10_000}, "0", 9}, {[]int{10_000}, "1 minute", 9},
		{[]int{10, 100, 1000, 10_000}, "0", 10}, {[]int{10, 100, 1000, 10_000}, "1 minute", 10},
	} {
		t.Run(fmt.Sprintf("%d rows, due for %s", test.rows, test.age), func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, pgtest.Migrated(t))
			req := dispatcher.ClaimRequest{Lease: time.Minute, MaxAttempts: 10, Keys: &dispatcher.KeyOrder{PerKey: 1}}
			for i, rows := range test.rows {
				topic := fmt.Sprint("orders ", i)
				pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload, next_attempt_at)
					select gen_random_uuid(), 'shop', $1, 'key ' || n % 5, '{}', now() - $3::interval from generate_series(1, $2::integer) as n`, topic, rows+5, test.age)
				req.Shares = append(req.Shares, dispatcher.Share{Topic: topic, Limit: 17})
			}
			made := o.count()
			holder := o.Store("shop", uuid.New())
			for held, claims := 0, 0; held < 5*len(test.rows); claims++ {
				claimed, err := holder.Claim(t.Context(), req)
				held += len(claimed.Events)
				need.Must(t, err == nil && claims <= 100, "%d rows are held after %d claims, %v, want the first of each key", held, claims, err)
			}
			store := o.Store("shop", uuid.New())
			const claims = 10
			before := made.n.Load()
			for range claims {
				if claimed, err := store.Claim(t.Context(), req); err != nil || len(claimed.Events) > 0 {
					t.Errorf("a claim found %d rows, %v, want none", len(claimed.Events), err)
				}
			}
			n := made.n.Load() - before
			need.That(t, n <= claims*test.most, "%d claims took %d statements, want at most %d each", claims, n, test.most)
		})
	}
}

// Where ranges are dense, a claim that reads keys again does it in the same transaction, with a statement of
// their own: it gets the next rows of each, and as many others as there is room for.
// CONTRACT: C-50
func TestKeysNextToDenseRangesShareATransaction(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	o.fillKeys(8000, 8000, "orders")
	pgtest.Exec(o, `update outbox.outbox_events set topic = case when seq % 4 < 2 then 'orders' else 'others' end,
		aggregate_id = case when seq % 2 = 0 and seq <= 1600 then 'hot' else aggregate_id end`)
	pgtest.Exec(o, `update outbox.outbox_events set key_hash = outbox.outbox_key_hash(namespace, topic, partition_key, aggregate_id)`)
	made := o.count()
	store := o.Store("shop", uuid.New())
	held, last := []dispatcher.Lease{}, map[string]int64{}
	claim := func(maxBytes int64, wantHot, wantOthers string) {
		t.Helper()
		all, dense, keyed := made.n.Load(), made.dense.Load(), made.keyed.Load()
		claimed, err := store.Claim(t.Context(), dispatcher.ClaimRequest{
			Shares: []dispatcher.Share{{Topic: "orders", Limit: 40}, {Topic: "others", Limit: 40}}, Lease: time.Minute,
			MaxAttempts: 10, MaxBytes: maxBytes, Keys: &dispatcher.KeyOrder{PerKey: 10},
		})
		need.OK(t, err)
		held = append(held, leasesOf(claimed.Events)...)
		hot, others, reached := map[string]int{}, map[string]int{}, "orders"
		for _, e := range claimed.Events {
			need.That(t, e.Topic >= reached, "a row of %s comes behind those of %s", e.Topic, reached)
			reached = e.Topic
			if e.AggregateID != "hot" {
				others[e.Topic]++
				continue
			}
			want := last[e.Topic] + 4
			need.That(t, last[e.Topic] == 0 || e.Seq == want, "row %d of the hot key in %s came, want %d", e.Seq, e.Topic, want)
			hot[e.Topic]++
			last[e.Topic] = e.Seq
		}
		if wantOthers == "" {
			return
		}
		need.That(t, fmt.Sprint(hot) == wantHot && fmt.Sprint(others) == wantOthers, "of the hot key came %v, and others %v, want %s and %s", hot, others, wantHot, wantOthers)
		dense, keyed = made.dense.Load()-dense, made.keyed.Load()-keyed
		need.That(t, dense == 1 && keyed == 1, "%d statements for ranges, and %d for keys, want one of each", dense, keyed)
		all = made.n.Load() - all
		need.Want(t, 1, "%d round trips, want 1", all)
	}
	ack := func() {
		t.Helper()
		if lost, err := store.Ack(t.Context(), held); err != nil || len(lost) > 0 {
			t.Fatalf("lost %v, %v", lost, err)
		}
		held = nil
	}
	for range 80 { // on a slow machine the first passes take longer
		before := made.dense.Load()
		claim(0, "", "")
		ack()
		if made.dense.Load() > before {
			break
		}
	}
	pgstore.NoPass(store)
	pgstore.Recall(store)
	claim(0, "map[orders:5 others:5]", "map[orders:35 others:35]")
	pgstore.Recall(store) // the last ones are still held
	claim(0, "map[]", "map[orders:35 others:35]")
	ack()
	pgstore.Recall(store) // room for eight rows of two bytes, and one more part in eight for keys
	claim(16, "map[orders:1]", "map[orders:7]")
}
