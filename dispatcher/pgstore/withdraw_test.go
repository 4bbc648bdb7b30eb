package pgstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/client/producer"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// wantWithdrawn withdraws the event with the dedupe key of topic orders, and compares what is said of it.
func (o outbox) wantWithdrawn(key, want string) {
	o.Helper()
	said := pgtest.Value[string](o, `select concat_ws(' ', result, 'token ' || (token = e.lease)) from outbox.withdraw('shop', 'orders', $1) as w left join outbox.outbox_events as e using (id)`, key)
	need.Want(o, want, "%s: the withdrawal says %q, want %q", said, key)
}

// A withdrawal says truly what became of the event, and changes it only if no worker has claimed it.
// CONTRACT: C-17
func TestWithdrawalsSayWhatIsSo(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	store := o.Store("shop", uuid.New())
	enqueue := func(key string) {
		pgtest.Exec(o, `select outbox.enqueue('shop', 'orders', '{}', p_dedupe_key => $1)`, key)
	}
	// claimed is a new event that the store has claimed.
	claimed := func(key string) dispatcher.Lease {
		t.Helper()
		enqueue(key)
		got, err := store.Claim(t.Context(), share("orders", 100))
		need.Must(t, err == nil && len(got.Events) == 1 && got.Events[0].DedupeKey == key, "claimed %+v, %v, want %s", got, err, key)
		return got.Events[0].Lease()
	}
	nack := func(lease dispatcher.Lease, reason dispatcher.DeadReason) {
		t.Helper()
		lost, err := store.Nack(t.Context(), []dispatcher.Failure{{Lease: lease, Error: "503", Delay: time.Hour, Reason: reason}})
		need.Must(t, err == nil && len(lost) == 0, "lost %v, %v", lost, err)
	}
	const tooLate = "too late token true"
	enqueue("waits")
	o.wantWithdrawn("waits", "withdrawn")
	o.wantWithdrawn("waits", "withdrawn") // by a producer that has not heard of it
	pgtest.Want(o, false, "its dedupe key is free: %t", `select inserted from outbox.enqueue('shop', 'orders', '{}', p_dedupe_key => 'waits')`)
	claimed("leased")
	o.wantWithdrawn("leased", tooLate)
	acked(t, store, []*dispatcher.Event{{ID: claimed("delivered").ID, LeaseNumber: 2}})
	o.wantWithdrawn("delivered", tooLate)
	nack(claimed("tried"), "")
	o.wantWithdrawn("tried", tooLate)
	lost, err := store.Release(t.Context(), []dispatcher.Return{{Lease: claimed("released"), Delay: time.Hour}})
	need.Must(t, err == nil && len(lost) == 0, "lost %v, %v", lost, err)
	o.wantWithdrawn("released", tooLate)
	nack(claimed("dead"), dispatcher.ReasonPermanentFailure)
	o.wantWithdrawn("dead", tooLate)
	pgtest.Want(o, 1, "%d dead letters are open, want 1", `select count(*) from outbox.outbox_dead_letters where resolution is null`)
	o.wantWithdrawn("other", "unknown")
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, dedupe_key, payload) values (gen_random_uuid(), 'shop', 'adopted', '', '{}')`) // as an adoption may
	pgtest.Want(o, "withdrawn unknown", "by an id and an empty key it is %s, want %s", `select string_agg(result, ' ') from outbox.withdraw_batch('{shop,shop}', '{adopted,adopted}',
		'{"",other}', array[(select id from outbox.outbox_events where dedupe_key = ''), null])`)
	pgtest.Want(o, "unknown", "in another topic it is %s", `select result from outbox.withdraw('shop', 'refunds', 'waits')`)
	pgtest.Want(o, "unknown", "in another namespace it is %s", `select result from outbox.withdraw('bills', 'orders', p_id => (select id from outbox.outbox_events where dedupe_key = 'waits'))`)

	// One that was too large to be read was never sent. Its dead letter is resolved, and a replay of it ends.
	enqueue("large")
	request := share("orders", 100)
	request.MaxRowBytes = 1
	got, err := store.Claim(t.Context(), request)
	need.Must(t, err == nil && len(got.Dead) == 1, "%+v, %v", got, err)
	o.wantWithdrawn("large", "withdrawn")
	pgtest.Want(o, "withdrawn "+o.Config().ConnConfig.User, "its dead letter is %s", `select resolution || ' ' || resolved_by from outbox.outbox_dead_letters where reason = 'poison_message'`)
	enqueue("larger")
	need.OK(t, need.Err(store.Claim(t.Context(), request)))
	pgtest.Exec(o, `select outbox.outbox_replay_begin('00000000-0000-0000-0000-000000000001', 'shop', 'replay', 'CHG', 'ada', '{}', 1, 0, 50, array(select id from outbox.outbox_dead_letters where reason = 'poison_message' and resolution is null))`)
	pgtest.Exec(o, `select outbox.outbox_replay_step(id, 10) from outbox.outbox_replays`)
	o.wantWithdrawn("larger", "withdrawn")
	pgtest.Exec(o, `select outbox.outbox_replay_observe(id) from outbox.outbox_replays`)
	pgtest.Want(o, "1 gone, finished, outcomes ''", "the replay has %s", `select format('%s gone, %s, outcomes ''%s''', gone, case when finished_at is not null then 'finished' end, outcomes) from outbox.outbox_replays`)

	for named, want := range map[string]string{
		`array['shop', 'shop'], array['orders', 'orders'], array['waits', '']`:     "event 2 of the withdrawal is not named",
		`array['shop'], array['orders'], array['waits'], array[gen_random_uuid()]`: "event 1 of the withdrawal is not named",
		`array['shop'], array['orders'], array['waits', 'dead']`:                   "event 2 of the withdrawal is not named",
		`array['shop'], array[''], array['waits']`:                                 "event 1 of the withdrawal is not named",
	} {
		need.Fails(t, want, "%v", need.Err(o.Exec(t.Context(), `select outbox.withdraw_batch(`+named+`)`)))
	}
	need.Fails(t, "withdraw after the data, on the transaction's own handle", "%v",
		need.Err(o.Exec(t.Context(), `set outbox.require_data = on; select outbox.withdraw('shop', 'orders', 'waits')`)))
}

// After a crash the server may have forgotten that an event was claimed: what was due then is too late, without a token.
// CONTRACT: C-17, C-27
func TestWithdrawalsKnowWhatTheServerForgot(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	enqueue := func(keys ...string) {
		for _, key := range keys {
			pgtest.Exec(o, `select outbox.enqueue('shop', 'orders', '{}', p_dedupe_key => $1, p_delay => case when $1 like 'later%' then interval '1 hour' else '0' end)`, key)
		}
	}
	enqueue("before", "before 2", "later", "later 2")
	pgtest.Exec(o, `truncate outbox.outbox_fence`) // as recovery does
	enqueue("while it is down")
	o.wantWithdrawn("before", "too late")
	o.wantWithdrawn("while it is down", "too late")
	o.wantWithdrawn("later", "withdrawn")
	pgtest.Exec(o, `select outbox.outbox_fence_raise()`)
	enqueue("after", "moved")
	pgtest.Exec(o, `update outbox.outbox_events set last_error = 'moved from topic bills' where dedupe_key = 'moved'`) // with a new seq
	o.wantWithdrawn("before 2", "too late")
	o.wantWithdrawn("later 2", "withdrawn")
	o.wantWithdrawn("after", "withdrawn")
	o.wantWithdrawn("moved", "too late")
}

// While a withdrawal is open no claim takes its event, nor with order a later one of the key; another worker waits for
// neither. Its end decides.
// CONTRACT: C-17, C-50
func TestClaimsPassByWhatIsWithdrawn(t *testing.T) {
	t.Parallel()
	for name, req := range map[string]dispatcher.ClaimRequest{"plain": share("orders", 10), "in order per key": inOrder("orders", 10, 5)} {
		for _, end := range []string{"commit", "rollback"} {
			o := newOutbox(t, pgtest.Migrated(t))
			pgtest.Exec(o, `select outbox.enqueue('shop', 'orders', '{}', p_dedupe_key => key, p_aggregate_id => left(key, 1)) from unnest('{a1,a2,b1}'::text[]) as key`)
			store, got := o.Store("shop", uuid.New()), []string{}
			claim := func(want int) {
				t.Helper()
				pgtest.Eventually(t, fmt.Sprintf("%s, %s: %d events are claimed", name, end, want), func() bool {
					claimed, err := store.Claim(t.Context(), req)
					need.OK(t, err)
					for _, e := range claimed.Events {
						got = append(got, e.DedupeKey)
					}
					acked(t, store, claimed.Events)
					return len(got) >= want
				})
			}
			tx := pgtest.Begin(o, `select outbox.withdraw('shop', 'orders', 'a1')`)
			want := "b1 a2"
			if req.Keys == nil {
				claim(2)
				want = "a2 b1"
			} else {
				claim(1)
			}
			if end == "commit" {
				need.OK(t, tx.Commit(t.Context()))
				claim(2)
			} else {
				need.OK(t, tx.Rollback(t.Context()))
				claim(3)
				want = map[bool]string{true: "a1 a2 b1", false: "b1 a1 a2"}[req.Keys == nil]
			}
			if req.Keys == nil {
				slices.Sort(got) // without order they come in any
			}
			need.Want(t, want, "%s, %s: claimed %s, want %s", strings.Join(got, " "), name, end)
		}
	}
}

// A withdrawal that waits for a claim, and comes too late, keeps no lock of the row: its worker writes the outcome back.
// CONTRACT: C-17
func TestWithdrawalsLetGoOfWhatIsClaimed(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	pgtest.Exec(o, `select outbox.enqueue('shop', 'orders', '{}', p_dedupe_key => key) from unnest('{a,b}'::text[]) as key`)
	claim := pgtest.Begin(o, `update outbox.outbox_events set status = 'processing', attempts = 1, lease = 7, locked_by = id, locked_until = now() + interval '1 minute' where dedupe_key = 'a'`)
	withdrawal := pgtest.Begin(o, `select 1`)
	said := make(chan string, 1)
	go func() {
		var text string
		err := withdrawal.QueryRow(t.Context(), `select string_agg(concat_ws(' ', result, token), ', ') from outbox.withdraw_batch('{shop,shop}', '{orders,orders}', '{a,b}')`).Scan(&text)
		said <- fmt.Sprint(text, err)
	}()
	pgtest.Eventually(t, "the withdrawal waits for the claim", func() bool {
		return pgtest.Value[bool](o, `select exists (select from pg_locks where not granted and database = (select oid from pg_database where datname = current_database()) or locktype = 'transactionid' and not granted)`)
	})
	need.OK(t, claim.Commit(t.Context()))
	need.Want(t, "too late 7, withdrawn<nil>", "it says %s, want %s", <-said)
	pgtest.Exec(o, `select from outbox.outbox_events where dedupe_key = 'a' for update nowait`)
	need.Fails(t, "could not obtain lock", "the row of b is free: %v", need.Err(o.Exec(t.Context(), `select from outbox.outbox_events where dedupe_key = 'b' for update nowait`)))
	need.OK(t, withdrawal.Commit(t.Context()))
	pgtest.Want(o, "processing withdrawn", "the rows are %s, want %s", `select string_agg(status, ' ' order by dedupe_key) from outbox.outbox_events`)
}

// A claim reads no more because others of the table are withdrawn, and once vacuum has come none of its own topic's either. A
// withdrawal looks up its event and its dead letters.
// CONTRACT: C-17
func TestWithdrawalsCostClaimsNothing(t *testing.T) {
	t.Parallel()
	p := newPlanned(t, pgtest.Migrated(t))
	p.fill(1000, "alone", "taken", "other")
	pgtest.Exec(p, `vacuum analyze outbox.outbox_events`)
	p.prepare()
	pgtest.Exec(p, `create function outbox_test_explain(p_sql text) returns setof text language plpgsql as $$ begin return query execute 'explain (verbose) ' || p_sql; end $$`)
	first := p.claim("alone", 100)
	alone := first.buffers()
	pgtest.Exec(p, `select outbox.withdraw_batch(array_fill('shop'::text, array[500]), array_fill('taken'::text, array[500]), p_ids =>
		array(select id from outbox.outbox_events where topic = 'taken' order by next_attempt_at, id limit 500))`)
	pgtest.Want(p.outbox, 500, "%d are withdrawn, want %d", `select count(*) from outbox.outbox_events where status = 'withdrawn'`)
	nearby := p.claim("other", 100)
	other := nearby.buffers()
	pgtest.Exec(p, `vacuum outbox.outbox_events`)
	behind := p.claim("taken", 100)
	taken := behind.buffers()
	pgtest.Exec(p, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts) select gen_random_uuid(), 'shop', 'other', 'permanent_failure', 1 from generate_series(1, 20000)`)
	one := p.explain(`select outbox.withdraw('shop', 'other', p_id => (select id from outbox.outbox_events where topic = 'other' and status = 'pending' limit 1))`).buffers()
	t.Logf("a claim of 100 reads %d buffers, %d next to 500 that are withdrawn, %d behind them; a withdrawal %d", alone, other, taken, one)
	need.That(t, one <= 300, "to withdraw an event reads %d buffers next to 20,000 open dead letters, which are in more", one)
	need.That(t, max(nearby.looked(), behind.looked()) <= first.looked(), "a claim reads %d rows where nothing is withdrawn, %d next to 500 that are, and %d behind them", first.looked(), nearby.looked(), behind.looked())
	inlined := pgtest.Value[bool](p.outbox, `select not exists (select from outbox_test_explain('select from outbox.outbox_events as e where outbox.outbox_withdrawable(e, 0, now())') as line where line like '%outbox_withdrawable%')`)
	need.That(t, inlined, "outbox_withdrawable is called for each row")
	// A row that is claimed takes one page more where its own has no room. A withdrawn one that is read is one of 500.
	need.That(t, max(other, taken) <= alone+150, "a claim reads %d buffers where nothing is withdrawn, %d next to 500 that are, and %d behind them", alone, other, taken)
}

// WithdrawalsVariable names the environment variable with the number of events of TestWithdrawalsRaceClaims: a million is its
// acceptance, and takes some minutes.
const WithdrawalsVariable = "OUTBOX_TEST_WITHDRAWALS"

// race has events that producers withdraw while workers claim them, with and without order, and what each of them knows.
type race struct {
	*fenced
	events int64        // as many are enqueued
	added  atomic.Int64 // so many were
	quiet  sync.RWMutex // held while nothing may wait for the disk
	gate   sync.RWMutex // held while nothing may be claimed

	mu        sync.Mutex
	sent      map[uuid.UUID]bool // a delivery of it has begun
	withdrawn map[uuid.UUID]bool // a producer has heard so, and committed
	late      map[uuid.UUID]bool // a producer has heard so
	forgotten int                // how many were sent of which the server has forgotten each claim
}

// work claims and delivers until no event is left. Some outcomes are written, and some workers end before.
func (r *race) work(ctx context.Context, req dispatcher.ClaimRequest) error {
	store := r.Store("shop", uuid.New())
	for ctx.Err() == nil {
		r.gate.RLock()
		claimed, err := store.Claim(ctx, req) // an error says that the server is down
		r.mu.Lock()
		for _, e := range claimed.Events {
			r.sent[e.ID] = true
		}
		r.mu.Unlock()
		r.gate.RUnlock()
		if err != nil || !r.quiet.TryRLock() { // a crash is to come: what waits for the disk would have it keep all
			continue
		}
		switch {
		case rand.IntN(4) == 0:
			store = r.Store("shop", uuid.New()) // killed
		case rand.IntN(4) == 0:
			_, _ = store.Release(ctx, returnsOf(claimed.Events))
		default:
			_, _ = store.Ack(ctx, leasesOf(claimed.Events))
		}
		r.quiet.RUnlock()
	}
	return nil
}

// produce enqueues events, and withdraws some of the newest. Each transaction commits or not, and some are ended by a crash.
func (r *race) produce(ctx context.Context) error {
	service := producer.New(producer.Options{Namespace: "shop"})
	for last := int64(0); last < r.events && ctx.Err() == nil; {
		r.quiet.RLock()
		last = r.added.Add(20)
		_, _ = r.Exec(ctx, `insert into outbox.outbox_events (id, namespace, topic, dedupe_key, aggregate_id, payload)
			select gen_random_uuid(), 'shop', case n % 2 when 0 then 'free' else 'keyed' end, n, case n % 2 when 1 then n % 51 end, '{}' from generate_series($1::bigint - 19, $1) as n`, last)
		for range 3 {
			names := make([]producer.Named, 1+rand.IntN(6))
			for i := range names {
				n := max(1, last-rand.Int64N(400))
				names[i] = producer.Named{Topic: []string{"free", "keyed"}[n%2], DedupeKey: strconv.FormatInt(n, 10)}
			}
			tx, err := r.Begin(ctx)
			if err != nil {
				continue
			}
			if said, err := service.WithdrawBatch(ctx, tx, names); err == nil {
				r.note(said, rand.IntN(3) > 0 && tx.Commit(ctx) == nil)
			}
			_ = tx.Rollback(ctx)
		}
		r.quiet.RUnlock()
	}
	return nil
}

func (r *race) note(said []producer.Withdrawal, committed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range said {
		switch {
		case w.Outcome == producer.TooLate:
			r.late[w.ID] = true
		case w.Outcome == producer.Withdrawn && committed:
			r.withdrawn[w.ID] = true
		}
	}
}

// deliveries is how many events were sent.
func (r *race) deliveries() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.sent)
}

// until waits for as long as the tests may take: with a million events that is not soon.
func (r *race) until(done func() bool) {
	r.Helper()
	for !done() {
		need.OK(r, r.Context().Err())
		time.Sleep(5 * time.Millisecond)
	}
}

// crash kills the server once workers have claimed more, and nothing has waited for the disk since. Then a producer withdraws all
// that was never claimed, for all that the server knows, before or after the fence is raised.
func (r *race) crash(raise bool) {
	r.Helper()
	r.quiet.Lock()
	defer r.quiet.Unlock()
	pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, payload) select gen_random_uuid(), 'shop', 'free', '{}' from generate_series(1, 200)`)
	before := r.deliveries()
	r.until(func() bool { return r.deliveries() >= before+100 })
	r.gate.Lock()
	defer r.gate.Unlock()
	r.srv.Kill()
	r.restarted(r.srv.Restart(r.Context()))
	if raise {
		pgtest.Exec(r, `select outbox.outbox_fence_raise()`)
	}
	var names []producer.Named
	for _, id := range pgtest.Value[[]uuid.UUID](r, `select coalesce(array_agg(id), '{}') from outbox.outbox_events where live and lease = 0 and topic = 'free'`) {
		names = append(names, producer.Named{Namespace: "shop", Topic: "free", ID: id})
		if r.sent[id] {
			r.forgotten++
		}
	}
	said, err := producer.New(producer.Options{}).WithdrawBatch(r.Context(), r.Pool, names)
	need.OK(r, err)
	r.note(said, true)
}

// Producers withdraw events while workers claim them and are killed, and the server crashes and forgets claims. What was sent is never
// withdrawn, what was withdrawn is never sent, and what a producer hears is so.
// CONTRACT: C-17
func TestWithdrawalsRaceClaims(t *testing.T) {
	t.Parallel()
	r := &race{fenced: newFenced(t), events: 9000, sent: map[uuid.UUID]bool{}, withdrawn: map[uuid.UUID]bool{}, late: map[uuid.UUID]bool{}}
	if text := os.Getenv(WithdrawalsVariable); text != "" {
		var err error
		r.events, err = strconv.ParseInt(text, 10, 64)
		need.Must(t, err == nil, "%s: %v", WithdrawalsVariable, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var workers, producers errgroup.Group
	for i := range 4 {
		req := share("free", 20)
		if i%2 > 0 {
			req = inOrder("keyed", 20, 3)
		}
		req.Lease = 200 * time.Millisecond
		workers.Go(func() error { return r.work(ctx, req) })
	}
	for range 3 {
		producers.Go(func() error { return r.produce(ctx) })
	}
	for part := range int64(3) {
		r.until(func() bool { return r.added.Load() >= r.events*(part+1)/4 })
		r.crash(part == 1)
	}
	need.OK(t, producers.Wait())
	r.until(func() bool {
		return pgtest.Value[int](r, `select count(*) from outbox.outbox_events where live and topic <> 'orders'`) == 0
	})
	stop()
	need.OK(t, workers.Wait())
	r.compare()
}

// compare holds what everyone knows against the rows.
func (r *race) compare() {
	r.Helper()
	rows, err := r.Query(r.Context(), `select id, status from outbox.outbox_events where topic <> 'orders'`)
	need.OK(r, err)
	var id uuid.UUID
	var status string
	counts := map[string]int{}
	_, err = pgx.ForEachRow(rows, []any{&id, &status}, func() error {
		counts[status]++
		need.That(r, r.sent[id] == (status != "withdrawn"), "%s is %s, and sent: %t", id, status, r.sent[id])
		need.That(r, !r.withdrawn[id] || status == "withdrawn", "%s is %s, and its producer has heard that it is withdrawn", id, status)
		need.That(r, !r.late[id] || status == "delivered", "%s is %s, and a producer has heard that it is too late", id, status)
		return nil
	})
	need.OK(r, err)
	r.Logf("of %d events %v; producers heard of %d that they are withdrawn, of %d that it is too late; claims of %d that were sent were forgotten", r.added.Load(), counts, len(r.withdrawn), len(r.late), r.forgotten)
	few := int(r.events / 50)
	need.That(r, len(counts) == 2 && counts["delivered"] > few && len(r.withdrawn) > few && len(r.late) > few && r.forgotten > 0, "the race proves little: %v", counts)
}
