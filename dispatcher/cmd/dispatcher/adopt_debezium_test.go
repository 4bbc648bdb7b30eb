package main

import (
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

const debeziumTable = `create table public.outboxevent (id uuid primary key default gen_random_uuid(), aggregatetype varchar(255) not null,
	aggregateid varchar(255) not null, type varchar(255) not null, payload jsonb)`

// The flags name the connector's slot and publication, and status shows the slot. Package adopt has the other errors.
//
// CONTRACT: C-91
func TestAdoptDebeziumShowsTheSlot(t *testing.T) {
	t.Parallel()
	o := installed(t)
	o.exec(t, debeziumTable+"; alter table public.outboxevent owner to "+o.owner+"; create publication orders for table public.outboxevent; alter role "+o.owner+" replication")
	file, slot := o.file(t, o.owner, "namespace: shop\n"), o.slot(t)
	shadow := []string{"adopt", "shadow", "-f", file, "--layout", "debezium", "--slot", slot}
	run(t, "", shadow...).ended(t, 1, "publication dbz_publication does not publish what is inserted into table public.outboxevent; give the publication.name of the connector (--publication)")
	shadow = append(shadow, "--publication", "orders")
	run(t, "", append(shadow, "--dry-run")...).ok(t, "nothing was changed", "after insert on")
	run(t, "", shadow...).ok(t, "adoption debezium: Shadow\n", "Then stop the connector, and run dispatcher adopt cutover")
	run(t, "", shadow...).ok(t, "adoption debezium: Shadow, as it was")
	o.exec(t, `insert into public.outboxevent (aggregatetype, aggregateid, type, payload) values ('Order', '1', 'OrderPaid', '{}'), ('', '1', 'OrderPaid', '{}')`)
	connector := o.connect(t, slot, "orders")
	run(t, "", "adopt", "status", "-f", file).ended(t, 3, "refused 1; slot "+slot+" is read, and ", " bytes are not confirmed\n", "1 refused")
	o.disconnect(t, connector, slot)
	run(t, "", "adopt", "cutover", "-f", file).ok(t, "adoption debezium: Live; 1 rows moved, 1 refused", "Leave the connector stopped", "The slot keeps WAL until then.")
	connector = o.connect(t, slot, "orders")
	run(t, "", "adopt", "status", "-f", file).ended(t, 3, "Stop the connector: it sends what the outbox has taken over.")
	run(t, "", "adopt", "back", "-f", file).ended(t, 1, "is active", "; stop the connector, and run it again")
	o.disconnect(t, connector, slot)
	o.exec(t, "select pg_drop_replication_slot('"+slot+"')")
	run(t, "", "adopt", "status", "-f", file).ended(t, 3, "slot "+slot+" is missing\nwaiting: ours 1")
	o.exec(t, "select pg_create_logical_replication_slot('"+slot+"', 'pgoutput')")
	run(t, "", "adopt", "back", "-f", file).ok(t, "adoption debezium: not adopted; 2 events returned", "The connector sends what its slot holds")
}

// A connector cannot read a server whose WAL cannot be decoded.
func TestAdoptDebeziumNeedsLogicalDecoding(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Server(t).DSN("postgres")).migrated(t)
	o.exec(t, debeziumTable+"; alter table public.outboxevent owner to "+o.owner)
	run(t, "", "adopt", "shadow", "-f", o.file(t, o.owner, "namespace: shop\n"), "--layout", "debezium").ended(t, 1,
		"there is no replication slot debezium, and with wal_level replica the server cannot have one; log in to the server that the connector reads")
}
