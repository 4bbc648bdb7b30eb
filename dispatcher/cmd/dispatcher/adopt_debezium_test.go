package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// debezium is an outbox with the table of Debezium's event router, and a slot of a name of its own.
type debezium struct {
	*outbox
	file, slot string
	shadow     []string
}

func newDebezium(t *testing.T, dsn string) debezium {
	t.Helper()
	o := newOutbox(t, dsn).migrated(t)
	d := debezium{o, o.file(t, o.owner, "namespace: shop\n"), strings.ToLower(o.owner) + "_slot", nil}
	d.shadow = []string{"adopt", "shadow", "-f", d.file, "--layout", "debezium", "--slot", d.slot}
	o.exec(t, `create table public.outboxevent (id uuid primary key default gen_random_uuid(), aggregatetype varchar(255) not null,
			aggregateid varchar(255) not null, type varchar(255) not null, payload jsonb);
		alter table public.outboxevent owner to `+o.producer)
	o.exec(t, fmt.Sprintf("grant %s to %s", o.producer, o.owner))
	t.Cleanup(d.dropSlot)
	return d
}

// logical skips the test where the server's WAL cannot be decoded.
func (d debezium) logical(t *testing.T) debezium {
	t.Helper()
	d.decodes(t)
	return d
}

// dropSlot removes the slot, which a database cannot be dropped with.
func (d debezium) dropSlot() {
	rows, err := d.admin.Query(context.Background(), "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1", d.slot)
	if err == nil {
		rows.Close()
	}
}

// insert commits a row as the producer, and deletes it at once.
func (d debezium) insert(t *testing.T, aggregate, payload string) {
	t.Helper()
	d.exec(t, fmt.Sprintf(`begin; set local role %s; insert into public.outboxevent (aggregatetype, aggregateid, type, payload)
		values ('%s', '1', 'OrderPaid', '%s'); delete from public.outboxevent; commit`, d.producer, aggregate, payload))
}

// connect reads the slot as a connector does, until the function that it returns is called.
func (d debezium) connect(t *testing.T) (stop func()) {
	t.Helper()
	conn := d.outbox.connect(t, d.slot, "orders_publication")
	return func() { t.Helper(); d.disconnect(t, conn, d.slot) }
}

// A table that Debezium reads is adopted, cut over and given back by hand. Errors name the slot, publication or login and
// the remedy.
//
// CONTRACT: C-91
func TestAdoptCutsOverDebezium(t *testing.T) {
	t.Parallel()
	d := newDebezium(t, pgtest.Empty(t)).logical(t)
	run(t, "", d.shadow...).ended(t, 1, "there is no replication slot "+d.slot+"; give the slot.name of the connector (--slot)", "slot.drop.on.stop false")
	for _, c := range []struct{ slot, want string }{
		{"pg_create_physical_replication_slot($1)", "slot " + d.slot + " is a physical one; give the slot.name"},
		{"pg_create_logical_replication_slot($1, 'test_decoding')", "slot " + d.slot + " has the plugin test_decoding, and an adoption reads pgoutput; give the connector plugin.name pgoutput"},
		{"pg_create_logical_replication_slot($1, 'pgoutput')", "publication dbz_publication does not publish what is inserted into table public.outboxevent; give the publication.name of the connector (--publication)"},
	} {
		d.dropSlot()
		_, err := d.admin.Exec(t.Context(), "select "+c.slot, d.slot)
		if err != nil && strings.Contains(c.slot, "test_decoding") {
			continue // a server without its contrib
		}
		check(t, err)
		run(t, "", d.shadow...).ended(t, 1, c.want)
	}
	shadow := append(d.shadow, "--publication", "orders_publication")
	d.exec(t, "create publication orders_publication for table public.outboxevent with (publish = 'delete')")
	run(t, "", shadow...).ended(t, 1, "publication orders_publication does not publish what is inserted")
	d.exec(t, "alter publication orders_publication set (publish = 'insert, delete')")
	run(t, "", shadow...).ended(t, 1, `let the login read replication slots: alter role "`+d.owner+`" replication`)
	d.exec(t, "alter role "+d.owner+" replication")

	stop := d.connect(t)
	run(t, "", append(shadow, "--dry-run")...).ok(t, "nothing was changed", "after insert on")
	run(t, "", shadow...).ok(t, "adoption debezium: Shadow\n", "Then stop the connector, and run dispatcher adopt cutover")
	run(t, "", shadow...).ok(t, "adoption debezium: Shadow, as it was")
	d.insert(t, "Order", `{"n": 1}`)
	d.insert(t, "", `{"n": 2}`)
	run(t, "", "adopt", "status", "-f", d.file).ended(t, 3, "refused 1; slot "+d.slot+" is read, and ", " bytes are not confirmed\n", "1 refused")
	for _, dry := range []string{"--dry-run", "--dry-run=false"} {
		run(t, "", "adopt", "cutover", "-f", d.file, dry).ended(t, 1, "slot "+d.slot, "is active", "; stop the connector, and run it again")
	}
	stop()
	run(t, "", "adopt", "cutover", "-f", d.file, "--dry-run").ok(t, "-- 2 rows are open now.", "in exclusive mode;")
	run(t, "", "adopt", "cutover", "-f", d.file, "--max-rows", "1").ended(t, 1, "holds more than 1 rows of public.outboxevent", "--max-rows")
	run(t, "", "adopt", "cutover", "-f", d.file).ok(t, "adoption debezium: Live; 1 rows moved, 1 refused", "Leave the connector stopped", "The slot keeps WAL until then.")
	d.insert(t, "Order", `{"n": 3}`)
	stop = d.connect(t)
	run(t, "", "adopt", "status", "-f", d.file).ended(t, 3, "Stop the connector: it sends what the outbox has taken over.")
	run(t, "", "adopt", "back", "-f", d.file).ended(t, 1, "is active", "; stop the connector, and run it again")
	stop()
	run(t, "", "once", "-f", d.outbox.file(t, d.dispatcher, dispatching("{log: {}}")), "-n", "1").ok(t, "delivered 1, failed 0")
	d.dropSlot()
	run(t, "", "adopt", "status", "-f", d.file).ended(t, 3, "slot "+d.slot+" is missing\nwaiting: ours 1")
	remake := "select pg_create_logical_replication_slot('" + d.slot + "', 'pgoutput')"
	run(t, "", "adopt", "back", "-f", d.file).ended(t, 1, "there is no replication slot "+d.slot+" any more", remake)
	d.exec(t, remake)
	run(t, "", "adopt", "back", "-f", d.file).ok(t, "adoption debezium: not adopted; 2 events returned", "The connector sends what its slot holds")
	if n := d.count(t, "live"); n != 0 {
		t.Errorf("%d events are left", n)
	}
}

// A connector cannot read a server whose WAL cannot be decoded.
func TestAdoptDebeziumWithoutLogicalDecoding(t *testing.T) {
	t.Parallel()
	d := newDebezium(t, pgtest.Server(t).DSN("postgres"))
	run(t, "", d.shadow...).ended(t, 1, "there is no replication slot "+d.slot+", and with wal_level replica the server cannot have one; log in to the server that the connector reads")
}
