package migrations_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-operator/outbox-operator/hack/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// as returns a connection of a new role that has the grants of the kinds and nothing else.
func (d database) as(kinds ...migrations.Kind) database {
	d.Helper()
	role := "outbox_test_" + strings.ToLower(rand.Text())
	quoted := pgx.Identifier{role}.Sanitize()
	d.exec(`create role ` + quoted + ` login password 'test'`)
	d.Cleanup(func() {
		for _, sql := range []string{`drop owned by ` + quoted, `drop role ` + quoted} {
			if _, err := d.Exec(context.Background(), sql); err != nil {
				d.Errorf("%s: %v", sql, err)
			}
		}
	})
	for _, kind := range kinds {
		for range 2 { // as after each migration
			for _, sql := range migrations.Grants("outbox", role, kind) {
				d.exec(sql)
			}
		}
	}
	config, err := pgx.ParseConfig(d.dsn)
	if err != nil {
		d.Fatal(err)
	}
	config.User, config.Password = role, "test"
	conn, err := pgx.ConnectConfig(d.Context(), config)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { _ = conn.Close(context.Background()) })
	return database{d.T, conn, d.dsn}
}

// wantRefused checks that each statement fails for want of a right.
func (d database) wantRefused(statements ...string) {
	d.Helper()
	for _, sql := range statements {
		_, err := d.Exec(d.Context(), sql)
		if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || pg.Code != "42501" {
			d.Errorf("%s: error is %v, want insufficient privilege", sql, err)
		}
	}
}

// A producer may call enqueue: its rows go in checked, and it reads and changes nothing.
func TestGrantsProducer(t *testing.T) {
	t.Parallel()
	owner := newDatabase(t, pgtest.Migrated(t))
	producer := owner.as(migrations.Producer)
	first := producer.mustEnqueue(`'shop', 'orders', '{}', p_dedupe_key => 'k'`)
	if again := producer.mustEnqueue(`'shop', 'orders', '{}', p_dedupe_key => 'k'`); again.inserted || again.id != first.id {
		t.Errorf("a duplicate gave %+v", again)
	}
	if both := producer.batch(`'{shop,shop}', '{orders,orders}', '{"{}","{}"}', p_dedupe_keys => '{k,l}'`); both[0] != (enqueued{first.id, false}) || !both[1].inserted {
		t.Errorf("a batch gave %+v", both)
	}
	// What a producer puts in the way of the function's names is not used with the owner's rights.
	producer.exec(`create temporary table outbox_events (id uuid, like_the_real_one text)`)
	producer.mustEnqueue(`'shop', 'orders', '{}'`)
	producer.batch(`'{shop}', '{orders}', '{"{}"}'`)
	if n := owner.events(); n != 4 {
		t.Errorf("%d rows, want 4", n)
	}
	producer.wantRefused(
		`select * from outbox.outbox_events`,
		`insert into outbox.outbox_events (id, namespace, topic, payload) values (gen_random_uuid(), 'a', 'b', '{}')`,
		`update outbox.outbox_events set status = 'delivered'`,
		`delete from outbox.outbox_events`,
		`select * from outbox.outbox_dead_letters`,
		`select * from outbox.outbox_workers`,
		`select nextval('outbox.outbox_leases')`,
		`select outbox.enqueue_retry_problem('{}')`,
		`create table outbox.mine ()`,
	)
}

// A dispatcher's verbs are tested with its grants in package pgstore. Here is what it may not do.
func TestGrantsDispatcher(t *testing.T) {
	t.Parallel()
	owner := newDatabase(t, pgtest.Migrated(t))
	owner.mustEnqueue(`'shop', 'orders', '{}'`)
	dispatcher := owner.as(migrations.Dispatcher)
	state, err := migrations.Status(t.Context(), dispatcher.Conn, "outbox")
	if err != nil || state.Version != migrations.Version {
		t.Errorf("status with a dispatcher's rights is %+v, %v", state, err)
	}
	dispatcher.exec(`select nextval('outbox.outbox_leases')`)
	dispatcher.exec(`insert into outbox.outbox_workers (worker, dispatcher, namespace) values (gen_random_uuid(), 'shop', 'shop')
		on conflict (worker) do update set seen_at = now()`)
	dispatcher.exec(`delete from outbox.outbox_workers where seen_at < now() - interval '1 minute'`)
	dispatcher.exec(`update outbox.outbox_dead_letters set resolution = 'expired', resolved_at = now(), resolved_by = 'retention'`)
	dispatcher.exec(`delete from outbox.outbox_dead_letters`)
	dispatcher.exec(`insert into outbox.outbox_sweeps (name) values ('retention')`)
	dispatcher.exec(`update outbox.outbox_sweeps set position = 1`)
	dispatcher.wantRefused(
		`delete from outbox.outbox_sweeps`,
		`select setval('outbox.outbox_leases', 1)`,
		`drop table outbox.outbox_events`,
		`truncate outbox.outbox_events`,
		`alter table outbox.outbox_events add column x integer`,
		`insert into outbox.outbox_events (id, namespace, topic, payload) values (gen_random_uuid(), 'a', 'b', '{}')`,
		`update outbox.outbox_dead_letters set reason = 'poison_message'`,
		`update outbox.outbox_dead_letters set event_id = event_id`,
		`insert into outbox.outbox_migrations (version, name, checksum, oldest_reader) values (99, 'x', 'x', 99)`,
		`update outbox.outbox_migrations set checksum = ''`,
		`select outbox.enqueue('shop', 'orders', '{}')`,
		`select outbox.enqueue_batch('{shop}', '{orders}', '{"{}"}')`,
		`create table outbox.mine ()`,
	)
	if _, err := migrations.Up(t.Context(), owner.as().Conn, "outbox"); err == nil {
		t.Error("a role without rights migrated")
	}
}
