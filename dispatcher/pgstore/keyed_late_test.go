package pgstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// deliverKeys commits and delivers rows of 60 keys, several times: after that the store has looked at the open
// transactions, and remembers of each key what it can.
func (o outbox) deliverKeys(store dispatcher.Store) {
	o.Helper()
	const keys = 60
	for range 3 {
		o.fillMore(keys)
		claimed := o.claimKeys(store, keys)
		if len(claimed) != keys {
			o.Fatalf("%d rows were claimed, want %d", len(claimed), keys)
		}
		if lost, err := store.Ack(o.Context(), leasesOf(claimed)); err != nil || len(lost) > 0 {
			o.Fatalf("lost %v, %v", lost, err)
		}
	}
}

// fillMore commits a row of each of so many keys.
func (o outbox) fillMore(keys int) {
	o.Helper()
	pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload)
		select gen_random_uuid(), 'shop', 'orders', 'key ' || n, '{}' from generate_series(1, $1::integer) as n`, keys)
}

func (o outbox) claimKeys(store dispatcher.Store, limit int) []*dispatcher.Event {
	o.Helper()
	claimed, err := store.Claim(o.Context(), dispatcher.ClaimRequest{
		Shares: []dispatcher.Share{{Topic: "orders", Limit: limit}}, Lease: time.Minute, MaxAttempts: 10, Keys: &dispatcher.KeyOrder{PerKey: 1},
	})
	if err != nil {
		o.Fatal(err)
	}
	return claimed.Events
}

// A row that becomes live behind the back of a worker that remembers its key, with a seq below what it has delivered, holds
// up the later rows of the key all the same. It is not due, so that no range has it.
// CONTRACT: C-50
func TestRowsThatBecomeLiveLate(t *testing.T) {
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
				if err := s.Restart(t.Context()); err != nil {
					t.Fatal(err)
				}
				o, srv = newOutbox(t, p.Config().ConnString()), s
			}
			store := o.Store("shop", uuid.New())
			dead := uuid.New()
			if name == "replayed" {
				pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload) values ($1, 'shop', 'orders', 'key 1', '{}')`, dead)
				e := o.claimKeys(store, 1)
				if _, err := store.Nack(t.Context(), []dispatcher.Failure{{Lease: e[0].Lease(), Reason: dispatcher.ReasonPoisonMessage}}); err != nil {
					t.Fatal(err)
				}
			}
			connect := func() *pgx.Conn {
				conn, err := pgx.Connect(t.Context(), o.Config().ConnString())
				if err != nil {
					t.Fatal(err)
				}
				return conn
			}
			conn, other := connect(), connect()
			defer func() {
				_ = conn.Close(context.Background())
				_ = other.Close(context.Background())
			}()
			run := func(sql string) {
				t.Helper()
				if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := other.Exec(t.Context(), `begin`); err != nil {
				t.Fatal(err)
			}
			if _, err := other.Exec(t.Context(), `select nextval('outbox.outbox_events_seq_seq')`); err != nil {
				t.Fatal(err)
			}
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
				if err := srv.Restart(t.Context()); err != nil {
					t.Fatal(err)
				}
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
	o.fillKeys(150, 1, "orders")
	store := o.Store("shop", uuid.New())
	pgstore.GiveUpSearches(store)
	got, gaveUp := 0, 0
	for {
		claimed, err := store.Claim(o.Context(), dispatcher.ClaimRequest{
			Shares: []dispatcher.Share{{Topic: "orders", Limit: 10}}, Lease: time.Minute, MaxAttempts: 10, Keys: &dispatcher.KeyOrder{PerKey: 4},
		})
		if err != nil {
			t.Fatal(err)
		}
		if claimed.Leased() == 0 {
			if !claimed.Unfinished {
				break
			}
			gaveUp++
			continue
		}
		got += claimed.Leased()
		if _, err := store.Ack(o.Context(), leasesOf(claimed.Events)); err != nil {
			t.Fatal(err)
		}
	}
	if got != 150 || gaveUp == 0 {
		t.Errorf("%d of 150 rows were found, and %d searches were given up", got, gaveUp)
	}
}
