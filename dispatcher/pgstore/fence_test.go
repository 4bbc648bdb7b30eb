package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/storetest"
	"github.com/outbox-operator/outbox-operator/dispatcher/pgstore"
	"github.com/outbox-operator/outbox-operator/hack/servers/postgres"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
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
		need.OK(f, need.Err(store.Release(f.Context(), returnsOf(claimed.Events))))
	}
	return last
}

// restarted waits for the server and connects again.
func (f *fenced) restarted(err error) {
	f.Helper()
	need.OK(f, err)
	f.Reset()
	pgtest.Eventually(f, "the server accepts connections", func() bool { return f.Ping(f.Context()) == nil })
}

// Whatever makes a server forget the last numbers, they rise. Each kind forgets some: the sequence itself is behind.
// CONTRACT: C-27
func TestLeasesRiseAfterTheServerForgets(t *testing.T) {
	t.Parallel()
	f := newFenced(t)
	need.Want(t, 1, "the first claim of an outbox has number %d, want 1", f.claim(f.outbox, 1))
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
			need.OK(t, err)
			defer func() { _ = other.Close(context.Background()) }()
			need.OK(t, syscall.Kill(pid, syscall.SIGKILL))
			// The server ends all sessions, and takes a new one meanwhile if it has not noticed yet.
			pgtest.Eventually(f, "the server has ended the other sessions", func() bool { return other.Ping(t.Context()) != nil })
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
		{"a cluster that it had left has it again", func() {
			f.highest += 1 << 46 // on the other one
			pgtest.Exec(f, `select setval('outbox.outbox_leases', $1)`, f.highest-1<<16)
			pgtest.Exec(f, `truncate outbox.outbox_fence`)
		}},
	} {
		forgot := false
		for try := 0; try < 5 && !forgot; try++ { // the put-off writing may just be due
			f.claim(f.outbox, 200)
			test.forget()
			forgot = pgtest.Value[int64](f, `select last_value from outbox.outbox_leases`) < f.highest
			f.claim(f.outbox, 1)
		}
		need.That(t, forgot, "%s: the server knows all that it gave: this proves nothing", test.name)
		need.Want(t, 1, "%s: the fence has %d rows, want 1", pgtest.Value[int](f, `select count(*) from outbox.outbox_fence`), test.name)
	}
	need.That(t, f.highest < 1<<53, "%d is not exact in JavaScript", f.highest)
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
	pgtest.Eventually(t, "the standby follows no more", func() bool {
		return pgtest.Value[int](behind, `select count(*) from pg_stat_wal_receiver`) == 0
	})
	pgtest.Exec(f, `create table later ()`) // waits for the disk here, and is not on the standby
	f.claim(f.outbox, 500)

	need.OK(t, standby.Promote(t.Context()))
	known := pgtest.Value[int64](behind, `select last_value from outbox.outbox_leases`)
	need.That(t, known < f.highest, "the standby knows %d of %d: this proves nothing", known, f.highest)
	first := f.claim(behind, 1)

	old := &fenced{outbox: f.outbox, srv: f.srv}
	old.claim(old.outbox, 200)
	old.srv.Kill()
	old.restarted(old.srv.Restart(t.Context()))
	last := old.claim(old.outbox, 200)
	need.That(t, last < first, "the old primary gives %d after it was started again, and the new one began at %d", last, first)
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
			need.Want(t, nil, "%s: %v", <-errs, level)
		}
		need.Want(t, "local", "%s: the fence was raised with synchronous_commit %s, want once, with local", pgtest.Value[string](o, `select string_agg(synchronous, ' ') from raised`), level)
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
	pgtest.Want(p.outbox, 1, "the fence has %d rows, want 1", `select count(*) from outbox.outbox_fence`)
	t.Logf("%d buffers, with a table of %d pages", read, pages)
	need.That(t, read <= pages/2, "raising the fence read %d buffers, with a table of %d pages", read, pages)
}

// A worker that stops reading in the middle of a claim gives all its rows up when the lease would have
// ended, with and without order per key: the server ends the transaction. It is stopped by a proxy that
// reads no more, as a process that was frozen does.
// CONTRACT: C-33
func TestFrozenReaderGivesItsRowsUp(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string]*dispatcher.KeyOrder{"None": nil, "Key": {PerKey: 10}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const rows, lease = 80, 3 * time.Second
			dsn := pgtest.Migrated(t)
			o := newOutbox(t, dsn)
			pgtest.Exec(o, `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload)
				select gen_random_uuid(), 'shop', 'orders', (n % 40)::text, to_jsonb(repeat('x', 250000)) from generate_series(1, $1::integer) as n`, rows)

			through := newProxy(t, dsn)
			frozen := pgstore.New(pgtest.Pool(t, through.dsn+"&application_name=frozen"), pgstore.Options{Schema: pgtest.Schema, Namespace: "shop"})
			if _, err := frozen.Schema(t.Context()); err != nil { // connects
				t.Fatal(err)
			}
			through.freezeAfter(256 << 10)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan int, 1)
			go func() {
				claimed, _ := frozen.Claim(ctx, dispatcher.ClaimRequest{
					Shares: []dispatcher.Share{{Topic: "orders", Limit: rows}}, Lease: lease, MaxAttempts: 10, Keys: keys,
				})
				ended <- len(claimed.Events)
			}()
			// The rows are locked before the first of them is sent. How long the server waits is too short to look for.
			o.eventually("the worker stopped in the middle of the claim", through.frozen)

			other, got := o.Store("shop", uuid.New()), 0
			o.eventually("another worker has all rows", func() bool {
				claimed, err := other.Claim(t.Context(), dispatcher.ClaimRequest{
					Shares: []dispatcher.Share{{Topic: "orders", Limit: rows}}, Lease: time.Hour, MaxAttempts: 10, Keys: keys,
				})
				need.OK(t, err)
				for _, e := range claimed.Events {
					need.Want(t, 1, "event %s is at attempt %d, want 1: the frozen claim was rolled back", e.Attempt, e.ID)
				}
				lost, err := other.Ack(t.Context(), leasesOf(claimed.Events))
				need.That(t, err == nil && len(lost) == 0, "lost %v, %v", lost, err)
				got += len(claimed.Events)
				return got >= rows
			})
			cancel()
			n := <-ended
			need.That(t, got == rows && n == 0, "the other worker had %d rows, and the frozen one %d, want %d and 0", got, n, rows)
		})
	}
}

// proxy is a way to a server that can stop reading from it.
type proxy struct {
	dsn  string
	left atomic.Int64 // bytes that it reads until it freezes
	done <-chan struct{}
}

func newProxy(t *testing.T, dsn string) *proxy {
	t.Helper()
	u, err := url.Parse(dsn)
	need.OK(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	need.OK(t, err)
	t.Cleanup(func() { listener.Close() })
	p := &proxy{done: t.Context().Done()}
	p.left.Store(1 << 62)
	server := u.Host
	u.Host = listener.Addr().String()
	p.dsn = u.String()
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go p.pass(client, server)
		}
	}()
	return p
}

func (p *proxy) freezeAfter(bytes int64) { p.left.Store(bytes) }

func (p *proxy) frozen() bool { return p.left.Load() <= 0 }

func (p *proxy) pass(client net.Conn, address string) {
	defer client.Close()
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer server.Close()
	_ = server.(*net.TCPConn).SetReadBuffer(16 << 10)
	go func() { _, _ = io.Copy(server, client) }()
	buffer := make([]byte, 8<<10)
	for p.left.Load() > 0 {
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		p.left.Add(int64(-n))
		if _, err := client.Write(buffer[:n]); err != nil {
			return
		}
	}
	<-p.done
}

// A crash of the database does not undo a dead letter that was reported done. An ack it may undo: the event is
// delivered again. The server is made to put off the writing that no transaction waits
// for, so that a crash does undo it.
// CONTRACT: C-22, C-41
func TestDeadLetterSurvivesACrash(t *testing.T) {
	t.Parallel()
	p, srv := newServer(t)
	pgtest.Exec(p, `alter system set wal_writer_delay = '10s'`)
	pgtest.Exec(p, `alter system set wal_writer_flush_after = '1GB'`)
	pgtest.Exec(p, `select pg_reload_conf()`)
	crash := crash{p, srv, p.Store("shop", uuid.New())}

	undone := false
	for range 5 { // the put-off writing may just be due
		id, held := crash.hold()
		lost, err := crash.store.Ack(t.Context(), held)
		undone = undone || crash.after(lost, err, id).Status == "processing"
	}
	need.That(t, undone, "no crash undid an ack: this test proves nothing")

	id, held := crash.hold()
	lost, err := crash.store.Nack(t.Context(), []dispatcher.Failure{{Lease: held[0], Reason: dispatcher.ReasonPoisonMessage}})
	if row := crash.after(lost, err, id); row.Status != "dead" || len(p.DeadLetters(id)) != 1 {
		t.Errorf("after a dead letter and a crash the row is %+v with %d dead letters, want it dead", row, len(p.DeadLetters(id)))
	}

	id, _ = crash.hold()
	pgtest.Exec(p, `update outbox.outbox_events set locked_until = now() - interval '1 second', suspicion = 5 where id = $1`, id)
	claimed, err := crash.store.Claim(t.Context(), dispatcher.ClaimRequest{
		Shares: []dispatcher.Share{{Topic: "orders", Limit: 1}}, Lease: time.Hour, MaxAttempts: 1,
	})
	need.That(t, len(claimed.Dead) == 1, "dead are %v, want one", claimed.Dead)
	if row := crash.after(nil, err, id); row.Status != "dead" || len(p.DeadLetters(id)) != 1 {
		t.Errorf("after a dead letter at a claim and a crash the row is %+v with %d dead letters, want it dead", row, len(p.DeadLetters(id)))
	}
}

type crash struct {
	planned
	srv   *postgres.Server
	store dispatcher.Store
}

// hold makes an outbox of one row that is leased, and this durable.
func (c crash) hold() (uuid.UUID, []dispatcher.Lease) {
	c.Helper()
	pgtest.Exec(c, `delete from outbox.outbox_events`)
	c.fill(1, "orders")
	claimed, err := c.store.Claim(c.Context(), share("orders", 1))
	if err != nil || len(claimed.Events) != 1 {
		c.Fatalf("claimed %v, %v", claimed, err)
	}
	pgtest.Exec(c, `comment on table outbox.outbox_events is 'a commit that waits for the disk, and all before it'`)
	return claimed.Events[0].ID, leasesOf(claimed.Events)
}

// after crashes the server and reads the row again.
func (c crash) after(lost []dispatcher.Lease, err error, id uuid.UUID) storetest.Row {
	c.Helper()
	c.srv.Kill()
	if err != nil || len(lost) > 0 {
		c.Fatalf("lost %v, %v", lost, err)
	}
	need.OK(c, c.srv.Restart(c.Context()))
	c.Reset()
	return c.Row(id)
}

// logical starts a server from which tables can be replicated, with an empty outbox.
func logical(t *testing.T) outbox {
	t.Helper()
	srv, err := postgres.Start(t.Context(), postgres.Options{Settings: map[string]string{"wal_level": "logical"}})
	need.OK(t, err)
	t.Cleanup(func() {
		need.Want(t, nil, "%v", srv.Stop(context.Background()))
	})
	o := newOutbox(t, srv.DSN("postgres"))
	conn, err := pgx.Connect(t.Context(), srv.DSN("postgres"))
	if err == nil {
		_, err = migrations.Up(t.Context(), conn, pgtest.Schema)
		err = errors.Join(err, conn.Close(t.Context()))
	}
	need.OK(t, err)
	return o
}

// An outbox moves to another server by logical replication, as migrations/README.md says. Until outbox_moved has run the
// schema is not ready and says so; then producers add events, rows become dead, tokens rise and keys keep their order.
// CONTRACT: C-27
func TestMoveByLogicalReplicationKeepsOrderAndTokens(t *testing.T) {
	t.Parallel()
	from, to := logical(t), logical(t)
	enqueue := func(o outbox) error {
		_, err := o.Exec(t.Context(), `select outbox.enqueue('shop', 'orders', '{}', p_partition_key => 'k')`)
		return err
	}
	for range 5 {
		need.OK(t, enqueue(from))
	}
	pgtest.Exec(from, `select setval('outbox.outbox_leases', 5::bigint << 45)`) // as of a server that was promoted more often
	old := from.Store("shop", uuid.New())
	var highest int64
	for range 300 {
		claimed, err := old.Claim(t.Context(), share("orders", 5))
		need.Must(t, err == nil && len(claimed.Events) == 5, "claimed %d, %v", len(claimed.Events), err)
		highest = claimed.Events[0].LeaseNumber
		need.OK(t, need.Err(old.Release(t.Context(), returnsOf(claimed.Events))))
	}
	kill := func(o outbox) error {
		store := o.Store("shop", uuid.New())
		claimed, err := store.Claim(t.Context(), share("orders", 1))
		if err != nil || len(claimed.Events) != 1 {
			return fmt.Errorf("claimed %d, %w", len(claimed.Events), err)
		}
		n := claimed.Events[0].LeaseNumber
		need.That(t, n > highest, "a claim after the move has number %d, and %d was given before", n, highest)
		highest = claimed.Events[0].LeaseNumber
		lost, err := store.Nack(t.Context(), []dispatcher.Failure{{Lease: claimed.Events[0].Lease(), Reason: dispatcher.ReasonPoisonMessage}})
		if err == nil && len(lost) > 0 {
			err = fmt.Errorf("lost %v", lost)
		}
		return err
	}
	need.OK(t, kill(from))

	const tables = `outbox.outbox_events, outbox.outbox_dead_letters, outbox.outbox_aggregate_sequences, outbox.outbox_replays`
	pgtest.Exec(from, `create publication outbox for table `+tables)
	pgtest.Exec(to, `create subscription outbox connection '`+from.Config().ConnString()+`' publication outbox`)
	need.OK(t, enqueue(from))
	pgtest.Eventually(t, "the rows are copied", func() bool {
		const rows = `select (select count(*) from outbox.outbox_events) * 10 + (select count(*) from outbox.outbox_dead_letters)`
		return pgtest.Value[int](to, rows) == pgtest.Value[int](from, rows)
	})
	pgtest.Exec(to, `drop subscription outbox`)

	schema, err := to.Store("shop", uuid.New()).Schema(t.Context())
	need.That(t, err == nil && schema.State == dispatcher.SchemaSequencesBehind && strings.Contains(schema.Message, `select "outbox".outbox_moved()`),
		"before outbox_moved the schema is %+v, %v, want it to name the function", schema, err)
	err = errors.Join(enqueue(to), enqueue(to)) // the first has the number of the dead row
	need.That(t, err != nil && strings.Contains(err.Error(), "23505"), "before outbox_moved enqueue says %v: this proves nothing", err)
	pgtest.Exec(to, `update outbox.outbox_events set key_hash = 1`) // as by the hash of another major version
	pgtest.Exec(to, `update outbox.outbox_dead_letters set key_hash = 1`)
	pgtest.Exec(to, `select outbox.outbox_moved()`)
	schema, err = to.Store("shop", uuid.New()).Schema(t.Context())
	need.That(t, err == nil && schema.State == dispatcher.SchemaReady, "after outbox_moved the schema is %+v, %v, want it ready", schema, err)
	need.Want(t, nil, "%v", enqueue(to))
	for range 7 {
		need.Want(t, nil, "%v", kill(to))
	}
	const hashes = `select string_agg(distinct key_hash::text, ' ') = outbox.outbox_key_hash('shop', 'orders', 'k', null)::text
		from (select key_hash from outbox.outbox_events union all select key_hash from outbox.outbox_dead_letters) as all_of_them`
	need.That(t, pgtest.Value[bool](to, hashes), "not all rows of the key have the hash that new ones get")
}
