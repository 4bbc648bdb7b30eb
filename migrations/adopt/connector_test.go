package adopt_test

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
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

// debeziumService has the table of Debezium's outbox event router, by its documentation, with columns that a service may add. Each second
// producer deletes its row at once, as the documentation says that it may.
func debeziumService() oldService {
	return oldService{
		spec: adopt.Spec{Layout: adopt.Debezium, Namespace: "shop"},
		ddl: `
create table outboxevent (
	id            uuid         primary key,
	aggregatetype varchar(255) not null,
	aggregateid   varchar(255) not null,
	type          varchar(255) not null,
	payload       jsonb,
	size          integer      generated always as (length(payload::text)) stored,
	"Spuren""id"  text,
	raw           bytea,
	at            timestamptz  default now()
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
		if err != nil {
			t.Error(err)
		}
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
	crashes bool
}

func (r rig) connect(dsn string, l *ledger, every int) *connector {
	r.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	conn, err := pgconn.Connect(ctx, dsn+"&replication=database")
	if err != nil {
		r.Fatal(err)
	}
	conn.Frontend().SendQuery(&pgproto3.Query{String: `START_REPLICATION SLOT ` + r.old.spec.Slot + ` LOGICAL 0/0 (proto_version '1', publication_names 'dbz_publication')`})
	if err := conn.Frontend().Flush(); err != nil {
		r.Fatal(err)
	}
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
	c.close()
	return c.unconfirmed
}

// close ends the connector, and waits until the server knows.
func (c *connector) close() {
	c.stop()
	<-c.done
	_ = c.conn.Close(context.Background())
	pgtest.Eventually(c, "the slot is inactive after its reader has ended", time.Minute, func() bool {
		return c.Context().Err() != nil || !pgtest.Value[bool](c.rig, `select active from pg_replication_slots where slot_name = $1`, c.old.spec.Slot)
	})
}

func (c *connector) read(ctx context.Context, l *ledger, every int) error {
	var confirmed uint64
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
			err = c.confirm(confirmed)
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
					confirmed = end
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

// pgUser is the login and the password in a connection string.
func pgUser(t *testing.T, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return u.User.String()
}
