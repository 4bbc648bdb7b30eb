package pgstore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// copy claims what is due of a topic, and copies it.
func (o outbox) copy(store dispatcher.Store, from string, to ...string) (claimed, lost []dispatcher.Lease) {
	o.Helper()
	got, err := store.Claim(o.Context(), share(from, 1000))
	need.OK(o, err)
	for _, e := range got.Events {
		need.That(o, len(e.Payload) == 0, "the payload of %s left the database", e.ID)
	}
	claimed = leasesOf(got.Events)
	lost, err = store.(*pgstore.Store).Copy(o.Context(), to, claimed)
	need.OK(o, err)
	return claimed, lost
}

// A copy has all of its original but id, topic and place in the order, and is made once, whatever way leads to its topic. It needs a
// dispatcher's grants, and reads no payload.
// CONTRACT: C-19, C-50
func TestCopiesAreWholeAndOnce(t *testing.T) {
	t.Parallel()
	for _, deletes := range []bool{false, true} {
		o := newOutbox(t, pgtest.Migrated(t))
		o.stores = pgtest.Pool(t, o.login(migrations.Dispatcher))
		pgtest.Exec(o, `select outbox.outbox_journal_set(true, '7 days')`)
		store := pgstore.New(o.stores, pgstore.Options{Schema: pgtest.Schema, Namespace: "shop", Worker: uuid.New(), DeleteDelivered: deletes, WithoutPayloads: true})
		const n = 40
		tenant := uuid.New()
		pgtest.Exec(o, `select outbox.enqueue('shop', 'orders', jsonb_build_object('n', n), 'placed', 'order', 'a' || n % 3, p_tenant_id => $1::uuid, p_dedupe_key => $1::uuid || '/' || n,
			p_headers => '{"traceparent": "00-1"}', p_options => '{"aggregateSequence": true, "maxAttempts": 7}') from generate_series(1, $2::integer) as n`, tenant, n)
		pgtest.Exec(o, `create table originals as select * from outbox.outbox_events`)

		claimed, lost := o.copy(store, "orders", "warehouse", "billing")
		need.That(t, len(claimed) == n && len(lost) == 0, "%d are claimed, and %d lost", len(claimed), len(lost))
		lost, err := store.Extend(t.Context(), claimed, time.Minute)
		need.That(t, err == nil && len(lost) == 0, "the end of a lease is moved: %v, %v", lost, err)
		lost, err = store.Ack(t.Context(), claimed)
		need.That(t, err == nil && len(lost) == 0, "an ack of what is delivered already: %v, %v", lost, err)
		lost, err = store.Copy(t.Context(), []string{"warehouse"}, claimed)
		need.That(t, err == nil && len(lost) == n, "a second copying of the leases: %d are lost, %v", len(lost), err)
		pgtest.Want(o, map[bool]string{false: "40 delivered", true: ""}[deletes], "the originals are %q, want %q",
			`select coalesce(string_agg(distinct (select count(*) from outbox.outbox_events where topic = 'orders') || ' ' || status, ' '), '') from outbox.outbox_events where topic = 'orders'`)
		const same = `e.created_at, e.aggregate_sequence, e.max_attempts, e.tenant_id, e.namespace, e.event_type, e.aggregate_type, e.aggregate_id, e.partition_key, e.dedupe_key, e.payload::text`
		pgtest.Want(o, 2*n, "%d copies have what their originals have, want %d", `select count(*) from outbox.outbox_events as e join originals as o
			on e.headers = o.headers || jsonb_build_object('originalid', o.id, 'originaltopic', 'orders')
			where (`+same+`) is not distinct from (`+strings.ReplaceAll(same, "e.", "o.")+`) and e.topic in ('warehouse', 'billing') and e.status = 'pending' and e.first_due_at > e.created_at
			  and e.size_bytes = octet_length(e.payload::text) + octet_length(e.headers::text) - 2 and e.key_hash = outbox.outbox_key_hash('shop', e.topic, null, e.aggregate_id)`)
		pgtest.Want(o, true, "the copies are in the order of the originals: %t, want %t", `select bool_and(in_order) from (select row_number() over (partition by e.topic order by e.seq)
			= row_number() over (partition by e.topic order by o.seq) as in_order from outbox.outbox_events as e join originals as o on o.id::text = e.headers ->> 'originalid') as e`)

		// By another way, and in a circle.
		o.copy(store, "warehouse", "billing", "orders", "audit")
		o.copy(store, "audit", "warehouse", "orders")
		o.copy(store, "billing", "audit")
		pgtest.Want(o, map[bool]string{false: "audit 40, billing 40, orders 40, warehouse 40", true: "audit 40, warehouse 40"}[deletes], "there are %s, want %s",
			`select string_agg(format('%s %s', topic, n), ', ' order by topic) from (select topic, count(*) as n from outbox.outbox_events group by 1) as t`)
		pgtest.Want(o, "ack, insert", "the journal has %s", `select string_agg(distinct operation, ', ') from outbox.outbox_journal where operation in ('insert', 'ack', 'change', 'delete')`)
	}
}

// Who lost a lease copies nothing under it, and what another has delivered is not copied again.
// CONTRACT: C-19, C-23
func TestLostLeasesAreNotCopied(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	one, two := o.Store("shop", uuid.New()).(*pgstore.Store), o.Store("shop", uuid.New()).(*pgstore.Store)
	o.fill(5, "orders")
	held, err := one.Claim(t.Context(), share("orders", 5))
	need.OK(t, err)
	pgtest.Exec(o, `update outbox.outbox_events set locked_until = now() - interval '1 second'`)
	taken, err := two.Claim(t.Context(), share("orders", 3))
	need.OK(t, err)
	lost, err := one.Copy(t.Context(), []string{"billing"}, leasesOf(held.Events))
	need.That(t, err == nil && len(lost) == 3, "%d leases are lost, want 3; %v", len(lost), err)
	pgtest.Want(o, 2, "%d copies, want %d", `select count(*) from outbox.outbox_events where topic = 'billing'`)
	pgtest.Exec(o, `delete from outbox.outbox_events where topic = 'billing'`) // delivered, and swept
	lost, err = two.Copy(t.Context(), []string{"billing"}, leasesOf(taken.Events))
	need.That(t, err == nil && len(lost) == 0, "%v, %v", lost, err)
	pgtest.Want(o, 3, "%d copies, want %d", `select count(*) from outbox.outbox_events where topic = 'billing'`)
}

// What cannot be copied is refused with a sentence, and nothing is copied.
// CONTRACT: C-19
func TestWhatCannotBeCopiedIsRefused(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	store := func(name string) *pgstore.Store {
		return pgstore.New(o.stores, pgstore.Options{Schema: pgtest.Schema, Namespace: "shop", Dispatcher: name})
	}
	beatOf := func(name string, from, to []string) {
		beat(t, store(name), pgstore.WorkerInfo{Dispatcher: name, Topics: from, Copies: to})
	}
	problem := func(from, to string) error {
		return store("orders").CopyProblem(t.Context(), strings.Fields(from), strings.Fields(to))
	}
	beatOf("orders", []string{"orders"}, []string{"billing"}) // another pod of it
	beatOf("billing", []string{"billing"}, []string{"ledger", "audit"})
	beatOf("ledger", []string{"ledger"}, []string{"archive"})
	need.OK(t, problem("orders", "billing warehouse"))
	for to, want := range map[string]string{
		"warehouse orders": `this one copies to "orders", which it copies itself`,
		"billing":          `this one copies to "billing", dispatcher "billing" from there to "audit", which it copies itself; leave a topic out`,
		"ledger archive":   `this one copies to "archive", which`,
	} {
		need.Fails(t, want, to+": %v", problem("orders audit archive", to))
	}
	warnings, err := store("orders").CopyWarnings(t.Context(), []string{"billing", "audit", "warehouse"})
	need.OK(t, err)
	need.WantAll(t, []string{`no dispatcher delivers topic "audit", so its copies wait; make one`, `no dispatcher delivers topic "warehouse", so its copies wait; make one`,
		`dispatcher "billing" copies to topic "audit" too; where their originals have the same dedupe key, the second copy is refused`}, "warnings: %q, want %q", warnings)
	need.Fails(t, "no name, or one of more than 255 characters", "%v", problem("orders", strings.Repeat("x", 256)))
	o.stores = pgtest.Pool(t, o.login(migrations.Producer))
	need.Fails(t, `permission denied for function outbox_copy`, "%v", problem("orders", "billing"))
	pgtest.Want(o, 0, "%d events, want %d", `select count(*) from outbox.outbox_events`)
}

// Two dispatchers lose leases, connections and the server's responses: each event has one copy in each topic, and none of a key comes
// before an earlier one.
// CONTRACT: C-19, C-50
func TestCopiesSurviveLostConnections(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Migrated(t))
	const events = 3000
	pgtest.Exec(o, `select outbox.enqueue('shop', 'orders', '{}', p_aggregate_id => 'a' || n % 50) from generate_series(1, $1) as n`, events)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for kills := int64(0); kills < 30 && ctx.Err() == nil; {
			done, _ := o.Exec(ctx, `select pg_sleep(0.05); select pg_terminate_backend(pid) from pg_stat_activity where query like '%outbox_copy%' and state = 'active' and pid <> pg_backend_pid() and datname = current_database() limit 1`)
			kills += done.RowsAffected()
		}
	}()
	done := make(chan error, 2)
	for range cap(done) {
		go func() {
			store := o.Store("shop", uuid.New()).(*pgstore.Store)
			req := inOrder("orders", 40, 5)
			req.Lease = 3 * time.Second
			for left := events; left > 0; {
				got, err := store.Claim(ctx, req)
				if err == nil && len(got.Events) > 0 {
					if _, err := store.Copy(ctx, []string{"a", "b"}, leasesOf(got.Events)); err == nil { // else they are claimed again
						_, _ = store.Ack(ctx, leasesOf(got.Events))
					}
				} else if err := o.QueryRow(ctx, `select count(*) from outbox.outbox_events where topic = 'orders' and status <> 'delivered'`).Scan(&left); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range cap(done) {
		need.OK(t, <-done)
	}
	pgtest.Want(o, fmt.Sprintf("%d %d", 2*events, 2*events), "there are %s copies, want %s", `select count(*) || ' ' || count(distinct (topic, headers ->> 'originalid')) from outbox.outbox_events where topic in ('a', 'b')`)
	pgtest.Want(o, 0, "%d copies are before an earlier one of their key, want %d", `select count(*) from (select o.seq < lag(o.seq) over (partition by e.topic, e.aggregate_id order by e.seq) as inverted
		from outbox.outbox_events as e join outbox.outbox_events as o on o.id::text = e.headers ->> 'originalid') as e where inverted`)
}

// A copy writes about as much to the WAL as an insert of its event, and does not take much longer.
// CONTRACT: C-19
func TestCopyCostsAboutAnInsert(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	p, _ := newServer(t)
	const n, batch = 20_000, 500
	insert := func(topic string, n int) {
		pgtest.Exec(p, `select count(*) from (select array_agg('shop'::text) as ns, array_agg($1::text) as topics, array_agg('placed'::text) as types, array_agg('order'::text) as kinds,
				array_agg('order-' || i) as ids, array_agg(jsonb_build_object('order', i, 'lines', repeat('x', 400))) as payloads from generate_series(1, $2::integer) as i) as e
			cross join lateral outbox.enqueue_batch(ns, topics, payloads, types, kinds, ids)`, topic, n)
	}
	store := p.Store("shop", uuid.New()).(*pgstore.Store)
	each := func(topic string, do func([]dispatcher.Lease)) (bytes int64, took time.Duration) {
		for range n / 2 / batch {
			got, err := store.Claim(t.Context(), share(topic, batch))
			need.Must(t, err == nil && len(got.Events) == batch, "%d events, %v", len(got.Events), err)
			began := time.Now()
			bytes += p.wal(func() { do(leasesOf(got.Events)) })
			took += time.Since(began)
		}
		return bytes, took
	}
	insert("acked", n/2)
	insert("copied", n/2)
	acks, acking := each("acked", func(leases []dispatcher.Lease) { need.OK(t, need.Err(store.Ack(t.Context(), leases))) })
	began := time.Now()
	inserts := p.wal(func() {
		for range n / batch {
			insert("plain", batch)
		}
	})
	plain := time.Since(began)
	copies, took := each("copied", func(leases []dispatcher.Lease) {
		need.OK(t, need.Err(store.Copy(t.Context(), []string{"orders.warehouse", "orders.billing"}, leases)))
	})
	t.Logf("%d copies with their acks in %s, %.0f/s, of which the acks alone take %s; as many inserts in %s, %.0f/s; WAL of a copy %d bytes, of an insert %d, of an ack %d",
		n, took, n/took.Seconds(), acking, plain, n/plain.Seconds(), (copies-acks)/n, inserts/n, acks*2/n)
	need.That(t, (copies-acks)*100 <= inserts*120, "a copy writes %d bytes to the WAL, an insert %d", (copies-acks)/n, inserts/n)
}
