package adopt_test

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations/adopt"
)

// The way back of a table that was dropped removes what is kept of the adoption, and says what waits.
func TestBackOfDroppedTableRemovesAdoption(t *testing.T) {
	r := newRig(t, m10Service())
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	r.produce(t.Context(), 0)
	r.produce(t.Context(), 1)
	r.exec(`update outbox.outbox_events set status = 'delivered' where payload ->> 'n' = '0'`)

	r.exec(`alter table m10_recovery.outbox rename to old`)
	need.Fails(t, "the table was renamed, with the trigger: name it back", "of a table that was renamed: %v", need.Err(r.try(adopt.Back, adopt.Options{})))
	conn, err := r.Acquire(t.Context())
	need.OK(t, err)
	_, err = adopt.Read(t.Context(), conn.Conn(), pgtest.Schema, "")
	conn.Release()
	need.Fails(t, "end the adoption if it was dropped: dispatcher adopt back --name m10", "the status: %v", err)

	r.exec(`drop table m10_recovery.old`)
	dry, err := r.try(adopt.Back, adopt.Options{DryRun: true})
	need.That(t, err == nil && dry.Changed && len(dry.SQL) == 3, "a dry run %+v: %v", dry, err)
	result := r.step(adopt.Back, adopt.None, true)
	if want := "Table m10_recovery.outbox was dropped, and what was kept of its adoption is removed. 1 events of it are not delivered yet: they stay in the outbox, and a dispatcher of namespace " + r.old.spec.Namespace + " delivers them."; result.Next != want {
		t.Errorf("says %q", result.Next)
	}
	kept := pgtest.Value[int](r, `select (select count(*) from outbox.outbox_adoptions) + (select count(*) from outbox.outbox_adopted) + (select count(*) from pg_proc where proname like 'outbox_adopt\_m10%')`)
	waiting := pgtest.Value[int](r, `select count(*) from outbox.outbox_events where status = 'pending'`)
	need.That(t, kept == 0 && waiting == 1, "%d rows and functions are kept, %d events wait", kept, waiting)
	r.step(adopt.Back, adopt.None, false)
}

// The service's clean-up deletes rows that are complete, and their events may not be delivered yet: they are still counted, and the
// way back says that they stay. A row with the id of a deleted one is another event.
//
// CONTRACT: C-91
func TestEventsOfDeletedRowsStay(t *testing.T) {
	r := newRig(t, overviewService())
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	for n := range 4 {
		r.produce(t.Context(), n)
	}
	r.exec(`update outbox.outbox_events set status = 'delivered' where payload ->> 'n' = '0'`)
	id := pgtest.Value[string](r, `select id::text from outbox.events where payload ->> 'n' = '1'`)
	r.exec(`delete from outbox.events where payload ->> 'n' in ('0', '1')`)
	s := r.status()
	need.That(t, s.OK() && s.Rows == 2 && s.OpenEvents == 3, "after the clean-up: %+v", s)
	r.exec(`insert into outbox.events (id, topic, payload) values ('` + id + `', 'T', '{"n": 5}')`)
	if s := r.status(); !s.OK() || s.Rows != 3 || s.OpenEvents != 4 || r.numbers() != "0 1 2 3 5" {
		t.Errorf("after a row of the same id: %+v, events %s", s, r.numbers())
	}
	result := r.step(adopt.Back, adopt.None, true)
	want := "1 events stay in the outbox, because their rows were deleted or cannot go back: let a dispatcher run until they are delivered."
	need.That(t, result.Returned == 3 && strings.HasSuffix(result.Next, want), "returned %d, and says %q", result.Returned, result.Next)
	got := pgtest.Value[string](r, `select string_agg(payload ->> 'n', ' ' order by payload ->> 'n') from outbox.events where status = 'pending'`)
	need.That(t, got == "2 3 5" && r.numbers() == "0 1", "open rows %s, and events %s", got, r.numbers())
}

// Where an index of theirs lets one row of an aggregate be open, the newest event is what their worker gets: an older one waits
// while a dispatcher has a newer one, and a row that a producer has added meanwhile replaces both.
//
// CONTRACT: C-91
func TestBackReturnsTheNewestOfAnAggregate(t *testing.T) {
	r := newRig(t, m10Upsert())
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	for _, n := range []int{1, 2, 201, 202, 3} { // of the aggregates 1, 2, 1, 2 and 3
		r.produce(t.Context(), n)
	}
	r.exec(`update outbox.outbox_events set status = 'processing', attempts = 1, locked_by = gen_random_uuid(), locked_until = now() + interval '1 hour' where payload ->> 'n' in ('201', '202')`)
	result, err := r.try(adopt.Back, adopt.Options{Wait: time.Millisecond})
	need.That(t, err != nil && result.State == adopt.Returning && result.Returned == 1, "state %q, returned %d: %v", result.State, result.Returned, err)
	r.produce(t.Context(), 402) // theirs again
	r.exec(`update outbox.outbox_events set status = 'pending', locked_by = null, locked_until = null where status = 'processing'`)
	result = r.step(adopt.Back, adopt.None, true)
	need.Want(t, 1, "returned %d", result.Returned)
	pgtest.Want(r, "201, 3, 402", "open rows %q, want the newest of each aggregate", `select string_agg(payload ->> 'n', ', ' order by id) from m10_recovery.outbox where processed_at is null`)
}

// Where their worker deletes what it has sent, an id may have several events, and so may a value of which a unique index lets one
// be there: the newest one goes back, also when a dispatcher has an older one for longer, and a row that a producer has added
// meanwhile replaces them.
//
// CONTRACT: C-91
func TestBackReturnsTheNewestOfAnID(t *testing.T) {
	r := newRig(t, keyedService("text", `, primary key (id)); create unique index on keyed (kind) where kind <> 'a'`))
	delete(r.old.spec.Columns, "status")
	r.old.spec.Columns["sent"] = "delete"
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	for n, id := range []string{"a", "b", "c", "a", "b", "c"} {
		r.exec(`insert into keyed (id, data) values ($1, jsonb_build_object('n', $2::integer))`, id, n)
	}
	for _, row := range []string{`('d', 'k', '{"n": 7}')`, `('e', 'k', '{"n": 8}')`} {
		r.exec(`insert into keyed (id, kind, data) values ` + row)
	}
	r.exec(`update outbox.outbox_events set status = 'processing', attempts = 1, locked_by = gen_random_uuid(), locked_until = now() + interval '1 hour' where payload ->> 'n' in ('0', '1', '4')`)
	result, err := r.try(adopt.Back, adopt.Options{Wait: time.Millisecond})
	need.That(t, err != nil && result.State == adopt.Returning && result.Returned == 2, "state %q, returned %d: %v", result.State, result.Returned, err)
	r.exec(`insert into keyed (id, data) values ('a', '{"n": 6}')`) // theirs again
	r.exec(`update outbox.outbox_events set status = 'pending', locked_by = null, locked_until = null where status = 'processing'`)
	r.step(adopt.Back, adopt.None, true)
	pgtest.Want(r, "a 6, b 4, c 5, e 8", "rows %q, want the newest of each id and of a kind", `select string_agg(id || ' ' || (data ->> 'n'), ', ' order by id) from keyed`)
}

// A way back that ends after its first transaction leaves no trigger: no cut-over begins from that, and the next way back ends
// it. So does one of a table that was dropped.
//
// CONTRACT: C-91
func TestBackThatEndedHalfWay(t *testing.T) {
	r := newRig(t, keyedService("integer", `, primary key (id))`))
	r.step(adopt.ToShadow, adopt.Shadow, true)
	holder := pgtest.Begin(r, `lock table outbox.outbox_adopted in share mode`)
	back := func(ctx context.Context) error {
		conn, err := r.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		_, err = adopt.Apply(ctx, conn.Conn(), pgtest.Schema, adopt.Back, adopt.Spec{}, adopt.Options{})
		return err
	}
	ctx, crash := context.WithCancel(t.Context())
	defer crash()
	done := make(chan error, 1)
	go func() { done <- back(ctx) }()
	r.eventually("the notes are to be removed", func() bool {
		return len(done) > 0 || pgtest.Value[bool](r, `select exists (select from pg_locks where not granted and relation = 'outbox.outbox_adopted'::regclass)`)
	})
	crash()
	need.Fails(t, "table public.keyed has gone back, and what is kept of adoption keyed was not removed", "got %v", <-done)
	need.OK(t, holder.Rollback(t.Context()))
	r.exec(`insert into keyed (id) values (2)`)
	need.Fails(t, "is on its way back; finish that first", "a cut-over without the shadow's trigger: %v", need.Err(r.try(adopt.Cutover, adopt.Options{})))
	need.Want(t, nil, "%v", back(t.Context()))
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.exec(`drop table keyed`)
	need.Want(t, nil, "%v", back(t.Context()))
	r.step(adopt.Back, adopt.None, false)
}

// debeziumService has the table of Debezium's outbox event router, by its documentation, with columns that a service may add. Each second
// producer deletes its row at once, as the documentation says that it may.
func debeziumService() oldService {
	return oldService{
		spec: adopt.Spec{Layout: adopt.Debezium, Namespace: "shop"},
		ddl: `
create table outboxevent (
	id uuid primary key, aggregatetype varchar(255) not null, aggregateid varchar(255) not null, type varchar(255) not null, payload jsonb,
	size integer generated always as (length(payload::text)) stored, "Spuren""id" text, raw bytea, at timestamptz default now()
);
create publication dbz_publication for all tables;`,
		produce: func(ctx context.Context, tx pgx.Tx, n int) error {
			const insert = `insert into outboxevent (id, aggregatetype, aggregateid, type, payload, "Spuren""id", raw)
				values (md5($1)::uuid, 'Order', $2, 'OrderCreated', jsonb_build_object('n', $1::text::integer), E'"a"\\\n\u00fc', '\x00ff')`
			_, err := tx.Exec(ctx, insert, fmt.Sprint(n), fmt.Sprint(n%200))
			if err == nil && n%2 == 0 {
				_, err = tx.Exec(ctx, `delete from outboxevent where id = md5($1)::uuid`, fmt.Sprint(n))
			}
			return err
		},
	}
}

// newLogRig is a rig whose table has a publication, and a slot of a name of its own.
func newLogRig(t *testing.T) (rig, string) {
	t.Helper()
	t.Parallel()
	dsn := pgtest.Migrated(t)
	r := rig{t, pgtest.Pool(t, dsn), debeziumService()}
	if pgtest.Value[string](r, `show wal_level`) != "logical" {
		need.Missing(t, errors.New("the server's WAL cannot be decoded; start one with wal_level = logical"))
	}
	r.old.spec.Slot = "s_" + strings.ToLower(rand.Text())
	r.exec(r.old.ddl)
	r.exec(`select pg_create_logical_replication_slot($1, 'pgoutput')`, r.old.spec.Slot)
	t.Cleanup(func() { // which a database cannot be dropped with
		_, err := r.Exec(context.WithoutCancel(t.Context()), `select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1`, r.old.spec.Slot)
		need.Want(t, nil, "%v", err)
	})
	return r, dsn
}

// connector reads the slot as Debezium's does: by the replication protocol, and without a position of its own. It sends each
// event as it reads it, and confirms the end of each so many-th transaction.
type connector struct {
	rig
	conn *pgconn.PgConn
	done chan struct{}
	stop context.CancelFunc
	// unconfirmed are the numbers that were sent since.
	unconfirmed map[int]bool
	// crashes has it confirm nothing any more.
	crashes   bool
	confirmed uint64 // the position that was last confirmed
}

func (r rig) connect(dsn string, l *ledger, every int) *connector {
	r.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	conn, err := pgconn.Connect(ctx, dsn+"&replication=database")
	need.OK(r, err)
	conn.Frontend().SendQuery(&pgproto3.Query{String: `START_REPLICATION SLOT ` + r.old.spec.Slot + ` LOGICAL 0/0 (proto_version '1', publication_names 'dbz_publication')`})
	need.OK(r, conn.Frontend().Flush())
	c := &connector{rig: r, conn: conn, done: make(chan struct{}), stop: cancel, unconfirmed: map[int]bool{}}
	go func() {
		defer close(c.done)
		if err := c.read(ctx, l, every); err != nil && ctx.Err() == nil {
			r.Errorf("the connector: %v", err)
		}
	}()
	r.Cleanup(func() { c.close() })
	return c
}

// crash ends the connector when it has sent something that it has not confirmed, and returns the numbers.
func (c *connector) crash(l *ledger) map[int]bool {
	c.Helper()
	l.do(func() { c.crashes = true })
	c.eventually("the connector has sent something", func() (some bool) {
		l.do(func() { some = len(c.unconfirmed) > 0 })
		return some
	})
	c.eventually("the server has what was confirmed", func() (has bool) {
		l.do(func() {
			position := fmt.Sprintf("%X/%X", c.confirmed>>32, uint32(c.confirmed))
			has = pgtest.Value[bool](c.rig, `select confirmed_flush_lsn >= $1::text::pg_lsn from pg_replication_slots where slot_name = $2`, position, c.old.spec.Slot)
		})
		return has
	})
	c.close()
	return c.unconfirmed
}

// close ends the connector, and waits until the server knows.
func (c *connector) close() {
	c.stop()
	<-c.done
	_ = c.conn.Close(context.Background())
	pgtest.Eventually(c, "the slot is inactive after its reader has ended", func() bool {
		return c.Context().Err() != nil || !pgtest.Value[bool](c.rig, `select active from pg_replication_slots where slot_name = $1`, c.old.spec.Slot)
	})
}

func (c *connector) read(ctx context.Context, l *ledger, every int) error {
	var numbers []int
	commits := 0
	for {
		message, err := c.conn.ReceiveMessage(ctx)
		if err != nil {
			return err
		}
		var data []byte
		switch m := message.(type) {
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(m)
		case *pgproto3.CopyData:
			data = m.Data
		}
		switch {
		case len(data) > 17 && data[0] == 'k' && data[17] == 1: // it requests a reply
			err = c.confirm(c.confirmed)
		case len(data) > 25 && data[0] == 'w' && data[25] == 'I':
			if n, ok := inserted(data[25:]); ok {
				numbers = append(numbers, n)
			}
		case len(data) > 25 && data[0] == 'w' && data[25] == 'C':
			if len(numbers) == 0 {
				break
			}
			end := binary.BigEndian.Uint64(data[35:])
			commits++
			l.do(func() {
				for _, n := range numbers {
					l.theirs[n]++
					c.unconfirmed[n] = true
				}
				if commits%every == 0 && !c.crashes {
					c.confirmed = end
					err = c.confirm(end)
					clear(c.unconfirmed)
				}
			})
			numbers = nil
		}
		if err != nil {
			return err
		}
	}
}

// confirm reports what is sent for good: written, flushed and applied.
func (c *connector) confirm(position uint64) error {
	data := []byte{'r'}
	for _, n := range []uint64{position, position, position, 0} {
		data = binary.BigEndian.AppendUint64(data, n)
	}
	c.conn.Frontend().Send(&pgproto3.CopyData{Data: append(data, 0)})
	return c.conn.Frontend().Flush()
}

// inserted is the number of a message Insert of the table outboxevent, which has eight columns that are sent.
func inserted(message []byte) (n int, ok bool) {
	if binary.BigEndian.Uint16(message[6:]) != 8 {
		return 0, false
	}
	at := 8
	for column := range 8 {
		if message[at] != 't' {
			at++
			continue
		}
		length := int(binary.BigEndian.Uint32(message[at+1:]))
		if column == 4 {
			return number(string(message[at+5 : at+5+length])), true
		}
		at += 5 + length
	}
	panic(errors.New("no payload"))
}
