package pgstore_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// fenced is an outbox of 2,000 rows on a server that writes nothing to the disk unless a transaction waits for it.
type fenced struct {
	outbox
	srv     *postgres.Server
	highest int64
}

func newFenced(t *testing.T) *fenced {
	t.Helper()
	p, srv := newServer(t)
	f := &fenced{outbox: newOutbox(t, srv.DSN("postgres")), srv: srv}
	for _, setting := range []string{`wal_writer_delay = '10s'`, `wal_writer_flush_after = '1GB'`, `log_min_messages = 'warning'`} {
		pgtest.Exec(f, `alter system set `+setting)
	}
	pgtest.Exec(f, `select pg_reload_conf()`)
	p.fill(2000, "orders")
	return f
}

// claim makes n claims of one row by way of o, and gives the rows back: each has a number above all before it.
func (f *fenced) claim(o outbox, n int) (last int64) {
	f.Helper()
	store := o.Store("shop", uuid.New())
	for range n {
		claimed, err := store.Claim(f.Context(), share("orders", 1))
		if err != nil || len(claimed.Events) != 1 {
			f.Fatalf("claimed %d events, %v, want 1", len(claimed.Events), err)
		}
		last = claimed.Events[0].LeaseNumber
		if last <= f.highest {
			f.Fatalf("the claim has number %d, and %d was given before", last, f.highest)
		}
		f.highest = last
		if _, err := store.Release(f.Context(), returnsOf(claimed.Events)); err != nil {
			f.Fatal(err)
		}
	}
	return last
}

// restarted waits for the server and connects again.
func (f *fenced) restarted(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
	f.Reset()
	pgtest.Eventually(f, "the server accepts connections", time.Minute, func() bool { return f.Ping(f.Context()) == nil })
}

// Whatever makes a server forget the last numbers, they rise. Each kind forgets some: the sequence itself is behind.
// CONTRACT: C-27
func TestLeasesRiseAfterTheServerForgets(t *testing.T) {
	t.Parallel()
	f := newFenced(t)
	if first := f.claim(f.outbox, 1); first != 1 {
		t.Errorf("the first claim of an outbox has number %d, want 1", first)
	}
	for _, test := range []struct {
		name   string
		forget func()
	}{
		{"a dump is restored", func() {
			row := pgtest.Value[string](f, `select to_json(f)::text from outbox.outbox_fence as f`)
			pgtest.Exec(f, `delete from outbox.outbox_fence`)
			pgtest.Exec(f, `insert into outbox.outbox_fence select * from json_populate_record(null::outbox.outbox_fence, $1::json)`, row)
			pgtest.Exec(f, `select setval('outbox.outbox_leases', 1)`)
		}},
		{"a session is killed", func() {
			pid := pgtest.Value[int](f, `select pg_backend_pid()`)
			other, err := pgx.Connect(t.Context(), f.srv.DSN("postgres"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = other.Close(context.Background()) }()
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			// The server ends all sessions, and takes a new one meanwhile if it has not noticed yet.
			pgtest.Eventually(f, "the server has ended the other sessions", time.Minute, func() bool { return other.Ping(t.Context()) != nil })
			f.restarted(nil)
		}},
		{"the server is killed", func() {
			f.srv.Kill()
			f.restarted(f.srv.Restart(t.Context()))
		}},
		{"a copy of a server that was stopped in order is started", func() {
			pgtest.Exec(f, `select setval('outbox.outbox_leases', last_value - 150) from outbox.outbox_leases`) // as when it was copied
			f.restarted(f.srv.Restart(t.Context()))
		}},
	} {
		forgot := false
		for try := 0; try < 5 && !forgot; try++ { // the put-off writing may just be due
			given := f.claim(f.outbox, 200)
			test.forget()
			forgot = pgtest.Value[int64](f, `select last_value from outbox.outbox_leases`) < given
			f.claim(f.outbox, 1)
		}
		if !forgot {
			t.Errorf("%s: the server knows all that it gave: this proves nothing", test.name)
		}
		if up := pgtest.Value[int](f, `select count(*) from outbox.outbox_fence`); up != 1 {
			t.Errorf("%s: the fence has %d rows, want 1", test.name, up)
		}
	}
	if f.highest >= 1<<53 {
		t.Errorf("%d is not exact in JavaScript", f.highest)
	}
}

// A standby that lagged takes over while the old primary lives on. The old one's numbers stay below the new one's, also
// after it is started again, and with a clock that is ahead.
// CONTRACT: C-27
func TestLeasesRiseAfterAFailover(t *testing.T) {
	t.Parallel()
	f := newFenced(t)
	f.claim(f.outbox, 100)
	standby := pgtest.Standby(t, f.srv)
	behind := newOutbox(t, standby.DSN("postgres"))
	pgtest.Exec(behind, `alter system set primary_conninfo = ''`)
	pgtest.Exec(behind, `select pg_reload_conf()`)
	pgtest.Eventually(t, "the standby follows no more", time.Minute, func() bool {
		return pgtest.Value[int](behind, `select count(*) from pg_stat_wal_receiver`) == 0
	})
	pgtest.Exec(f, `create table later ()`) // waits for the disk here, and is not on the standby
	f.claim(f.outbox, 500)

	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if known := pgtest.Value[int64](behind, `select last_value from outbox.outbox_leases`); known >= f.highest {
		t.Errorf("the standby knows %d of %d: this proves nothing", known, f.highest)
	}
	first := f.claim(behind, 1)

	old := &fenced{outbox: f.outbox, srv: f.srv}
	old.claim(old.outbox, 200)
	old.srv.Kill()
	old.restarted(old.srv.Restart(t.Context()))
	if last := old.claim(old.outbox, 200); last >= first {
		t.Errorf("the old primary gives %d after it was started again, and the new one began at %d", last, first)
	}
	f.claim(behind, 200)
}

// Pods that find the fence down at once raise it once, and each of them claims. At other isolation levels too.
// CONTRACT: C-27
func TestFenceIsRaisedOnce(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		o := newOutbox(t, pgtest.Migrated(t))
		o.fill(100, "orders")
		pgtest.Exec(o, `alter database `+o.Config().ConnConfig.Database+` set default_transaction_isolation = '`+level+`'`)
		pgtest.Exec(o, `create table raised (xid xid8 default pg_current_xact_id(), synchronous text default current_setting('synchronous_commit'))`)
		pgtest.Exec(o, `create function note() returns trigger language plpgsql security definer as 'begin insert into public.raised default values; return null; end'`)
		pgtest.Exec(o, `create trigger note after insert on outbox.outbox_fence execute function note()`)
		pgtest.Exec(o, `truncate outbox.outbox_fence`)
		o.stores = pgtest.Pool(t, o.login(migrations.Dispatcher))
		errs := make(chan error, 20)
		for range cap(errs) {
			go func() {
				_, err := o.Store("shop", uuid.New()).Claim(t.Context(), share("orders", 1))
				errs <- err
			}()
		}
		for range cap(errs) {
			if err := <-errs; err != nil {
				t.Errorf("%s: %v", level, err)
			}
		}
		if got := pgtest.Value[string](o, `select string_agg(synchronous, ' ') from raised`); got != "local" {
			t.Errorf("%s: the fence was raised with synchronous_commit %s, want once, with local", level, got)
		}
	}
}

// A cluster that is new to the outbox, as after pg_upgrade or a restore, raises the fence with no look at the events: a
// dispatcher's claim waits for it, however many are delivered.
// CONTRACT: C-27
func TestFenceIsRaisedWithoutTheEvents(t *testing.T) {
	t.Parallel()
	p := newPlanned(t, pgtest.Migrated(t))
	pgtest.Exec(p, `insert into outbox.outbox_events (id, namespace, topic, payload, status, lease)
		select gen_random_uuid(), 'shop', 'orders', to_jsonb(repeat('x', 500)), 'delivered', 5 from generate_series(1, 20000)`)
	pgtest.Exec(p, `truncate outbox.outbox_fence, outbox.outbox_clusters`)
	pages := pgtest.Value[int](p.outbox, `select pg_relation_size('outbox.outbox_events') / current_setting('block_size')::integer`)
	read := p.explain(`select outbox.outbox_fence_raise()`).buffers()
	if up := pgtest.Value[int](p.outbox, `select count(*) from outbox.outbox_fence`); up != 1 {
		t.Errorf("the fence has %d rows, want 1", up)
	}
	t.Logf("%d buffers, with a table of %d pages", read, pages)
	if read > pages/2 {
		t.Errorf("raising the fence read %d buffers, with a table of %d pages", read, pages)
	}
}
