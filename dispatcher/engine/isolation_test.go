package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/storetest"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/dispatcher/sink/sinktest"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// orderings are the configurations without and with order per key.
var orderings = []dispatcher.Ordering{dispatcher.OrderingNone, dispatcher.OrderingKey}

// A row that cannot be decoded is dead as a poison message. The rows that are claimed with it are delivered,
// each at its first attempt.
// CONTRACT: C-33, C-40
func TestUndecodableRowIsDeadAlone(t *testing.T) {
	for _, ordering := range orderings {
		t.Run(string(ordering), func(t *testing.T) {
			r := newRig(t)
			pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload, headers)
				select gen_random_uuid(), 'shop', 'orders', (n / 5)::text, '{}',
					case n when 251 then ('{"deep": ' || repeat('[', 10001) || repeat(']', 10001) || '}')::jsonb else '{}' end
				from generate_series(0, 499) as n`)
			log := &logBook{}
			sink := &book{}
			r.start(r.store(), sink, dispatcher.Config{Ordering: ordering, Logger: log.logger()})
			r.eventually("all others are delivered", func() bool { return r.count("status = 'delivered' and attempts = 1") == 499 })
			r.eventually("the row is dead", func() bool {
				return r.count("status = 'dead' and dead_reason = 'poison_message' and attempts = 1") == 1
			})
			sink.wantOnce(t, 499)
			pgtest.Want(r, 1, "%d dead letters say that the headers cannot be read, want 1", `select count(*) from outbox.outbox_dead_letters where reason = 'poison_message' and error like '%headers%'`)
			lines := log.lines("the database is unreachable")
			need.That(t, len(lines) == 0, "the log says that the database is unreachable: %v", lines)
		})
	}
}

// One outcome that the database refuses is found, named and left to its lease's end. All others are written,
// and the database is not reported as unreachable.
// CONTRACT: C-33
func TestRefusedOutcomeIsNamedAndLeft(t *testing.T) {
	for _, ordering := range orderings {
		t.Run(string(ordering), func(t *testing.T) {
			r := newRig(t)
			refused := uuid.New()
			pgtest.Exec(r, fmt.Sprintf(`create function outbox.refuse() returns trigger language plpgsql as $$ begin
					raise exception 'not in this table'; end $$;
				create trigger refuse before insert on outbox.outbox_dead_letters for each row
				when (new.event_id = '%s') execute function outbox.refuse()`, refused))
			pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload) values ($1, 'shop', 'bad', 'k', '{}')`, refused)
			r.enqueue("bad", 50)
			r.enqueue("good", 100)
			log, seen := &logBook{}, &watcher{}
			sink := &book{respond: func(_ context.Context, e *dispatcher.Event) error {
				if e.Topic == "bad" {
					return dispatcher.Permanent(dispatcher.ReasonPermanentFailure, errRefused)
				}
				return nil
			}}
			d := r.start(r.store(), sink, dispatcher.Config{Ordering: ordering, Logger: log.logger(), Observer: seen, Lease: time.Minute})
			r.eventually("the other topic is delivered", func() bool { return r.count("topic = 'good' and status = 'delivered'") == 100 })
			r.eventually("the others of its topic are dead", func() bool { return r.count("topic = 'bad' and status = 'dead'") == 50 })
			r.eventually("the snapshot has it", func() bool {
				s := d.Snapshot()
				return s.Outcomes.Known && !s.Outcomes.OK && s.Source.OK && strings.Contains(s.Outcomes.Err.Error(), "not in this table")
			})
			r.enqueue("good", 100)
			r.eventually("the other topic continues", func() bool { return r.count("topic = 'good' and status = 'delivered'") == 200 })
			need.Want(t, 1, "%d rows are left to their leases, want the refused one", r.count("status = 'processing'"))
			if lines := log.lines("refuses an outcome"); len(lines) != 1 || !strings.Contains(lines[0], refused.String()) {
				t.Errorf("the log names the refused outcome %d times, want once with its event: %v", len(lines), lines)
			}
			if lines := log.lines("the database is unreachable"); len(lines) > 0 {
				t.Errorf("the log says that the database is unreachable: %v", lines)
			}
			need.Want(t, 1, "%d refused outcomes were counted, want 1", seen.refused)
		})
	}
}

// One row that the database refuses to lease is found, named and left alone. All others of its topic are delivered, also where
// there is no other topic.
// CONTRACT: C-33
func TestRowRefusedAtAClaimIsNamedAndLeft(t *testing.T) {
	for _, ordering := range orderings {
		for _, topics := range [][]string{{"bad"}, {"bad", "good"}} {
			t.Run(fmt.Sprint(ordering, topics), func(t *testing.T) {
				r := newRig(t)
				for _, topic := range topics {
					r.enqueue(topic, 100)
				}
				odd := pgtest.Value[uuid.UUID](r, `select id from outbox.outbox_events where topic = 'bad' order by seq offset 50 limit 1`)
				pgtest.Exec(r, fmt.Sprintf(`create function outbox.refuse() returns trigger language plpgsql as $$ begin raise exception 'not this one'; end $$;
					create trigger refuse before update on outbox.outbox_events for each row when (new.id = '%s') execute function outbox.refuse()`, odd))
				log, seen := &logBook{}, &watcher{}
				d := r.start(r.store(), &book{}, dispatcher.Config{Topics: topics, Ordering: ordering, Logger: log.logger(), Observer: seen})
				r.eventually("it is refused", func() bool { return d.Snapshot().Claims.Known })
				r.enqueue("bad", 20)
				others := "id <> '" + odd.String() + "'" // in order per key its key waits for it
				if ordering == dispatcher.OrderingKey {
					others = "key_hash is distinct from (select key_hash from outbox.outbox_events where " + strings.Replace(others, "<>", "=", 1) + ")"
				}
				r.eventually("all others are delivered", func() bool { return r.count("status <> 'delivered' and "+others) == 0 })
				s, row := d.Snapshot(), (*dispatcher.RefusedRow)(nil)
				need.That(t, s.Source.OK && s.Claims.Known && errors.As(s.Claims.Err, &row) && row.ID == odd && !s.ClaimsStopped, "the snapshot says %+v of claims, and %+v of the database", s.Claims, s.Source)
				if lines := log.lines("the database refuses"); len(lines) != 1 || !strings.Contains(lines[0], odd.String()) || len(log.lines("unreachable")) > 0 {
					t.Errorf("the log names the row %d times, want once: %v", len(lines), lines)
				}
				seen.note(func() { need.Want(t, 1, "%d refused claims were counted, want %d", seen.claimsRefused) })
			})
		}
	}
}

// RunOnce delivers what is due behind rows that the database refuses to lease, and its error names these.
// CONTRACT: C-33
func TestRunOnceContinuesBehindRefusedRows(t *testing.T) {
	for _, topics := range [][]string{{"bad"}, {"bad", "worse", "good"}} {
		t.Run(fmt.Sprint(topics), func(t *testing.T) {
			r := newRig(t)
			for _, topic := range topics {
				r.enqueue(topic, 50)
			}
			pgtest.Exec(r, `create table outbox.odd as select id from (select id, topic, row_number() over (partition by topic order by seq) from outbox.outbox_events) e where topic <> 'good' and row_number <= 20`)
			pgtest.Exec(r, `create function outbox.refuse() returns trigger language plpgsql security definer as $$ begin
				if exists (select from outbox.odd where id = new.id) then raise exception 'not this one'; end if; return new; end $$;
			create trigger refuse before update on outbox.outbox_events for each row execute function outbox.refuse()`)
			odd := 20 * min(2, len(topics))
			got, err := r.once(&book{}, dispatcher.Config{}, 1000)
			want := 50*len(topics) - odd
			need.That(t, got.Delivered == want && err != nil && strings.Contains(err.Error(), fmt.Sprintf("not this one (SQLSTATE P0001); in all %d, of which the first are [", odd)), "RunOnce returned %+v, %v; want %d delivered and the %d events that are refused", got, err, want, odd)
		})
	}
}

// hang is a sink some of whose topics do not respond until they are released.
type hang struct {
	*book
	hung    atomic.Pointer[map[string]bool]
	letGo   chan struct{}
	waiting atomic.Int64 // calls
	most    atomic.Int64 // of these at once
}

func newHang(topics ...string) *hang {
	h := &hang{book: &book{}, letGo: make(chan struct{})}
	h.hang(topics...)
	h.respond = func(ctx context.Context, e *dispatcher.Event) error {
		if !(*h.hung.Load())[e.Topic] {
			return nil
		}
		n := h.waiting.Add(1)
		defer h.waiting.Add(-1)
		for most := h.most.Load(); n > most && !h.most.CompareAndSwap(most, n); most = h.most.Load() {
		}
		select {
		case <-h.letGo:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return h
}

func (h *hang) hang(topics ...string) {
	hung := map[string]bool{}
	for _, topic := range topics {
		hung[topic] = true
	}
	h.hung.Store(&hung)
}

// The destination of a topic does not respond, and no breaker knows it yet. Whatever its events are, those
// of the other topics are all delivered meanwhile, and its own when it responds again.
//
// CONTRACT: C-32
// REQUIREMENT: RULE-010-022, STORAGE-48
func TestHangOfOneTopicStopsNoOther(t *testing.T) {
	const events = 1000
	for name, test := range map[string]struct {
		hung   []string
		insert string // columns and their values
		batch  int
		cfg    dispatcher.Config
		atMost int64 // calls that hang
	}{
		"small":         {hung: []string{"a"}, atMost: 14},
		"one after one": {hung: []string{"a"}, cfg: dispatcher.Config{Concurrency: 2}, atMost: 1},
		"two topics":    {hung: []string{"a", "c"}, atMost: 15},
		"large":         {hung: []string{"a"}, insert: `repeat('x', 10000)`, cfg: dispatcher.Config{MaxBytes: 100_000}, atMost: 14},
		"many at once":  {hung: []string{"a"}, batch: 100, cfg: dispatcher.Config{BatchSize: 50}, atMost: 14},
		"order per key": {hung: []string{"a"}, cfg: dispatcher.Config{Ordering: dispatcher.OrderingKey}, atMost: 14},
		"named":         {hung: []string{"a"}, cfg: dispatcher.Config{Topics: []string{"a", "b", "c"}}, atMost: 14},
	} {
		t.Run(name, func(t *testing.T) {
			r, sink := newRig(t), newHang(test.hung...)
			sink.batch = test.batch
			payload := test.insert
			if payload == "" {
				payload = `'x'::text`
			}
			for _, topic := range test.hung {
				pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload)
					select gen_random_uuid(), 'shop', $1::text, (n % 100)::text, to_jsonb(`+payload+`) from generate_series(1, $2::integer) n`, topic, events)
			}
			r.enqueue("b", events)
			r.start(r.store(), sink, test.cfg)
			r.eventually("the other topic is delivered", func() bool { return sink.topic("b") == events })
			r.enqueue("b", events)
			r.eventually("also what comes later", func() bool { return sink.topic("b") == 2*events })
			n := sink.most.Load()
			need.That(t, n != 0 && n <= test.atMost, "%d calls were waiting for a response, want at most %d", n, test.atMost)
			need.Want(t, 0, "the topic has responded", sink.topic("a"))
			close(sink.letGo)
			r.eventually("every row is delivered at its first attempt", func() bool {
				return r.count("status = 'delivered' and attempts = 1") == (2+len(test.hung))*events
			})
		})
	}
}

// RunOnce does not take a topic that has enough for now for one that has nothing more.
//
// CONTRACT: C-32
func TestOnceWaitsForASlowTopic(t *testing.T) {
	const events = 100
	r, sink := newRig(t), newHang("a")
	r.enqueue("a", events)
	letGo := sync.OnceFunc(func() { close(sink.letGo) })
	store := before(r.store(), func(c storetest.Call) error {
		if c.Verb == "claim" && !slices.ContainsFunc(c.Claim.Shares, func(s dispatcher.Share) bool { return s.Topic == "a" }) {
			letGo() // a claim has left out the topic
		}
		return nil
	})
	got, err := r.onceOn(store, sink, dispatcher.Config{Topics: []string{"a", "b"}, Concurrency: 2, BatchSize: 10}, events)
	need.That(t, got.Delivered == events && err == nil, "RunOnce returned %+v, %v; want %d delivered", got, err, events)
}

// Two workers deliver 1,000 tenants at one event a second each: none has more than the rate.
//
// CONTRACT: C-51
func TestThousandTenantsHaveTheirRates(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what is delivered, and shows no race")
	}
	r := newRig(t)
	conn, err := r.Acquire(t.Context())
	need.OK(t, err)
	_, err = migrations.UpTenants(t.Context(), conn.Conn(), pgtest.Schema)
	conn.Release()
	need.OK(t, err)
	const tenants, each = 1000, 5
	pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, tenant_id, payload)
		select gen_random_uuid(), 'shop', 'orders', ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, '{}'
		from generate_series(1, $1::integer) as n, generate_series(1, 30)`, tenants)
	var mu sync.Mutex
	delivered, all, served := map[uuid.UUID]int{}, 0, 0
	sink := &sinktest.Func{Respond: func(_ context.Context, e *dispatcher.Event) error {
		mu.Lock()
		defer mu.Unlock()
		all++
		if delivered[e.TenantID.UUID]++; delivered[e.TenantID.UUID] == each {
			served++
		}
		return nil
	}}
	began := time.Now()
	for range 2 {
		store := pgstore.New(r.Pool, pgstore.Options{Schema: pgtest.Schema, Namespace: "shop", Worker: uuid.New(), Dispatcher: "orders", Fair: true})
		r.start(store, sink, dispatcher.Config{Topics: []string{"orders"}, Fairness: dispatcher.FairnessTenant,
			TenantRateLimit: dispatcher.Rate{Events: 1, Period: time.Second}})
	}
	r.eventually("each tenant has had five events", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return served == tenants
	})
	mu.Lock()
	defer mu.Unlock()
	passed := time.Since(began).Seconds()
	most := int(passed) + 2
	for tenant, n := range delivered {
		need.That(t, n <= most, "tenant %s has %d events in %.1fs, want at most %d", tenant, n, passed, most)
	}
	t.Logf("%d events in %.1fs: %.3f of the rates was used", all, passed, float64(all)/(passed*tenants))
}

// One event in the middle of a topic is not admitted. Two workers deliver none of that type, spend no attempt on
// what waits, and keep the order of each key, before and after it is admitted. Another topic flows.
//
// CONTRACT: C-82, C-50
func TestGateKeepsTheOrderOfKeys(t *testing.T) {
	const events, keys = 600, 13
	for _, batch := range []int{1, 7} {
		t.Run(fmt.Sprint("batch ", batch), func(t *testing.T) {
			r := newRig(t)
			r.enqueueKeys(events, keys)
			pgtest.Exec(r, "update outbox.outbox_events set event_type = case when seq % 300 = 150 then 'shipped' else 'placed' end")
			sink := &queue{batch: batch, keys: keys}
			var open atomic.Bool
			var early atomic.Int64
			sink.respond = func(_ context.Context, e *dispatcher.Event) error {
				if e.EventType == "shipped" && !open.Load() {
					early.Add(1)
				}
				return nil
			}
			var workers []*running
			for range 2 {
				d := r.engine(r.store(), ofOrders{sink}, dispatcher.Config{BatchSize: 50, Concurrency: 4, Ordering: dispatcher.OrderingKey, MaxAttempts: 1})
				d.Admit(func(eventType string) bool { return eventType == "placed" })
				workers = append(workers, r.run(d))
			}
			held := func(w *running) bool { return len(w.Snapshot().Gated) == 1 }
			r.eventually("the topic is paused", func() bool { return slices.ContainsFunc(workers, held) })
			pgtest.Exec(r, `insert into outbox.outbox_events (id, namespace, topic, event_type, payload) values ($1, 'shop', 'refunds', 'placed', '{}')`, uuid.New())
			r.eventually("another topic flows", func() bool { return r.count("topic = 'refunds' and status = 'delivered'") == 1 })
			if n := r.count("event_type = 'shipped' and status in ('delivered', 'dead')"); n != 0 || early.Load() != 0 {
				t.Errorf("%d events of the type have an outcome, %d were delivered", n, early.Load())
			}
			if n := r.count("status = 'dead' or status = 'pending' and attempts > 0"); n != 0 { // one may be looked at
				t.Errorf("%d events have spent attempts without a delivery", n)
			}
			open.Store(true)
			for _, w := range workers {
				w.Admit(func(eventType string) bool { return eventType == "placed" || eventType == "shipped" })
			}
			r.eventually("all is delivered", func() bool { return r.count("status = 'delivered' and attempts = 1") == events+1 })
			sink.check(t)
		})
	}
}

// ofOrders writes down the order of topic orders alone.
type ofOrders struct{ *queue }

func (s ofOrders) Deliver(ctx context.Context, batch []*dispatcher.Event) []error {
	if batch[0].Topic != "orders" {
		return make([]error, len(batch))
	}
	return s.queue.Deliver(ctx, batch)
}
