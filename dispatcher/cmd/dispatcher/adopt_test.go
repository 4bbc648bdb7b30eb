package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// A table is adopted, cut over and given back with the logins of a real installation: the outbox's owner, who is a member
// of the table's owner, and a producer that may insert into that table and nothing else.
//
// CONTRACT: C-91
func TestAdoptShadowsCutsOverAndGoesBack(t *testing.T) {
	t.Parallel()
	o := installed(t)
	o.exec(t, `create table public.events (id bigserial primary key, kind text, body jsonb not null, sent_at timestamptz, at timestamptz not null default now());
		alter table public.events owner to `+o.producer)
	file := o.file(t, o.owner, "")
	insert := func(body string) {
		t.Helper()
		o.exec(t, fmt.Sprintf(`set role %s; insert into public.events (kind, body) values ('OrderPaid', %s); reset role`, o.producer, body))
	}
	shadow := []string{"adopt", "shadow", "-f", file, "--layout", "columns", "--table", "public.events", "--namespace", "shop", "--topic", "orders", "--name", "orders",
		"--column", "id=id", "--column", "payload=body", "--column", "type=kind", "--column", "completed=sent_at", "--column", "created=at"}

	run(t, "", "adopt", "status", "-f", file).ok(t, "no table is adopted; begin with dispatcher adopt shadow")
	run(t, "", "adopt", "back", "-f", file).ok(t, "Nothing is adopted.")
	run(t, "", "adopt", "cutover", "-f", file).ended(t, 1, "begin with its shadow")
	run(t, "", shadow...).ended(t, 1, "is not the owner of table public.events", "grant ")
	o.exec(t, fmt.Sprintf("grant %s to %s", o.producer, o.owner))
	insert(`'{"n": 1}'`)
	run(t, "", append(shadow, "--column", "n")...).ended(t, 1, `--column is "n"`)
	run(t, "", append(shadow, "--dry-run")...).ok(t, "nothing was changed", "lock table \"public\".\"events\" in share row exclusive mode;", "create or replace trigger outbox_adopt_orders after insert")
	run(t, "", shadow...).ok(t, "adoption orders: Shadow\n", "dispatcher adopt status")
	run(t, "", shadow...).ok(t, "adoption orders: Shadow, as it was")
	insert(`'{"n": 2}'`)
	run(t, "", "adopt", "status", "-f", file).ok(t, "theirs 1, ours 1, missing 0, extra 0, refused 0\n", "waiting: theirs 2, ours 0")
	insert(`jsonb_build_object('secret', repeat('x', 1100000))`)
	refused := run(t, "", "adopt", "status", "-f", file, "-o", "json")
	refused.ended(t, 3, "1 refused")
	var status struct {
		Adoptions []struct {
			Name, Layout, Table, Namespace, Topic, State, Since, ObservedAt, Next string
			Theirs, Ours, Missing, Extra, Refused, TheirsWaiting, OursWaiting     int
			Refusals                                                              []struct{ ID, Reason string }
		}
	}
	check(t, json.Unmarshal([]byte(refused.out), &status))
	if a := status.Adoptions[0]; a.Name != "orders" || a.State != "Shadow" || a.Theirs != 2 || a.Ours != 1 || a.Refused != 1 || a.Refusals[0].ID != "3" || strings.Contains(refused.out, "xxx") {
		t.Errorf("%+v", a)
	}
	o.exec(t, `delete from public.events where id = 3`)

	run(t, "", "adopt", "cutover", "-f", file, "--dry-run").ok(t, "-- 2 rows are open now.", "in exclusive mode;")
	run(t, "", "adopt", "cutover", "-f", file, "--max-rows", "1").ended(t, 1, "more than 1 rows of public.events are open")
	run(t, "", "adopt", "cutover", "-f", file).ok(t, "adoption orders: Live; 2 rows moved, 0 refused")
	insert(`'{"n": 3}'`)
	run(t, "", "once", "-f", o.file(t, o.dispatcher, dispatching("{log: {}}")), "-n", "2").ok(t, "delivered 2, failed 0")
	run(t, "", "adopt", "status", "-f", file, "--name", "orders").ok(t, "adoption orders: Live, layout columns, table public.events", "waiting: theirs 0, ours 1")
	run(t, "", "adopt", "back", "-f", file).ok(t, "adoption orders: not adopted; 1 events returned", "Their worker delivers")
	if n := o.count(t, "live"); n != 0 {
		t.Errorf("%d events are left", n)
	}
	insert(`'{"n": 4}'`)
	run(t, "", "adopt", "status", "-f", file, "--name", "orders").ended(t, 1, "there is no adoption orders")
}
