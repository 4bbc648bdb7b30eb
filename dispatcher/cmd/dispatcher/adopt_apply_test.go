package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// adopter is an outbox next to a table of Overview's layout and one of another layout.
type adopter struct {
	*outbox
	left string // the termination message of the last run
}

func newAdopter(t *testing.T) *adopter {
	a := &adopter{outbox: installed(t)}
	for _, sql := range []string{
		"create table public.events (id uuid primary key default gen_random_uuid(), topic text not null, payload jsonb not null, status text not null default 'pending', attempt_count int not null default 0, next_attempt_at timestamptz not null default now(), created_at timestamptz not null default clock_timestamp())",
		"create table public.order_outbox (id bigint generated always as identity primary key, body jsonb not null, state text not null default 'NEW')",
		"alter table public.events owner to " + a.owner, "alter table public.order_outbox owner to " + a.owner,
	} {
		a.exec(t, sql)
	}
	return a
}

// The table is named, because Overview's own schema is that of the outbox here.
const (
	overviewPlan = "{name: overview, layout: overview, table: public.events, namespace: shop, phase: "
	columnsPlan  = "{name: orders, layout: columns, table: public.order_outbox, namespace: shop, topic: orders, columns: {id: id, payload: body, status: 'state:NEW:SENT'}, phase: "
)

// apply runs the command, as the Job of an Outbox does.
func (a *adopter) apply(t *testing.T, plan string) output {
	t.Helper()
	dir := t.TempDir()
	file, left := filepath.Join(dir, "plan.yaml"), filepath.Join(dir, "termination-log")
	check(t, os.WriteFile(file, []byte(plan), 0o600))
	check(t, os.WriteFile(left, nil, 0o600))
	cmd := command(t, "adopt", "apply", "-f", a.file(t, a.owner, ""), "--plan", file)
	cmd.Env = append(cmd.Env, "TERMINATION_LOG="+left)
	done := finish(t, cmd, "")
	text, err := os.ReadFile(left)
	check(t, err)
	a.left = string(text)
	return done
}

// reached applies a plan, and fails the test unless each adoption is as wanted: its name and phase.
func (a *adopter) reached(t *testing.T, plan string, want ...string) status.Adoptions {
	t.Helper()
	a.apply(t, plan).ok(t)
	var left status.Adoptions
	check(t, json.Unmarshal([]byte(a.left), &left))
	var got []string
	for _, one := range left.Adoptions {
		got = append(got, one.Name+" "+one.Phase)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the plan\n%s\nleft %v, want %v", plan, got, want)
	}
	return left
}

// A plan is reached from any phase, and a second run changes nothing.
//
// CONTRACT: C-91
func TestAdoptApplyReachesThePlan(t *testing.T) {
	t.Parallel()
	a := newAdopter(t)
	both := func(overview, orders string) string {
		return "adoptions:\n- " + overviewPlan + overview + "}\n- " + columnsPlan + orders + "}\n"
	}
	a.reached(t, both("Back", "Back"), "overview Back", "orders Back")
	a.exec(t, `insert into public.order_outbox (body) values ('{}'); insert into public.events (topic, payload) values ('orders', '{}')`)
	a.reached(t, both("Shadow", "Cutover"), "overview Shadow", "orders Cutover")
	if n := a.count(t, "status = 'pending'"); n != 1 {
		t.Errorf("%d events after the cutover of one row, want that one", n)
	}
	a.exec(t, `insert into public.events (topic, payload) values ('orders', '{}')`)
	left := a.reached(t, both("Shadow", "Cutover"), "overview Shadow", "orders Cutover")
	if o := left.Adoptions[0]; o.Theirs != 1 || o.Ours != 1 || o.Missing+o.Extra+o.Refused != 0 || o.Since.IsZero() {
		t.Errorf("the shadow has counted %+v, want one row of each", o)
	}
	if again := a.apply(t, both("Shadow", "Cutover")); again.out != "" {
		t.Errorf("a second run has done something:\n%s", again.out)
	}
	a.reached(t, both("Cutover", "Back"), "overview Cutover", "orders Back")
	if n := a.count(t, "status = 'pending' and topic = 'orders'"); n != 2 {
		t.Errorf("%d events wait, want the two rows of overview", n)
	}
}

// A removed adoption in the shadow ends; one that is cut over stays so. Unknown names are ignored.
func TestAdoptApplyEndsRemovedShadows(t *testing.T) {
	t.Parallel()
	a := newAdopter(t)
	a.reached(t, "adoptions:\n- "+overviewPlan+"Shadow}\n- "+columnsPlan+"Cutover}\n", "overview Shadow", "orders Cutover")
	a.reached(t, "removed: [unknown]\n")
	a.reached(t, "removed: [orders, overview]\n", "orders Cutover")
	a.reached(t, "adoptions:\n- "+overviewPlan+"Back}\n- "+columnsPlan+"Back}\n", "overview Back", "orders Back")
}

// An adoption that fails does not stop the others, and its error names it and the remedy.
func TestAdoptApplyFailsAlone(t *testing.T) {
	t.Parallel()
	a := newAdopter(t)
	plan := "adoptions:\n- {name: gone, layout: overview, table: public.gone, namespace: shop, phase: Shadow}\n- " + columnsPlan + "Cutover}\n"
	a.apply(t, plan).ended(t, 1, "adoption gone: adopt shadow: ", "public.gone")
	if !strings.Contains(a.left, "adoption gone") {
		t.Errorf("it left %q", a.left)
	}
	a.reached(t, "adoptions:\n- "+columnsPlan+"Cutover}\n", "orders Cutover")
	a.apply(t, "adoptions:\n- "+columnsPlan+"Shadow}\n").ended(t, 1, "adoption orders is Live; go back first")
	a.apply(t, "adoptions:\n- {name: orders, phase: Live}\n").ended(t, 78, `has the phase "Live"; choose Shadow, Cutover or Back`)
	a.apply(t, "adoptions:\n- {name: orders, fase: Back}\n").ended(t, 78, "fase")
	a.apply(t, "adoptions:\n- {name: orders, phase: Back}\n- {name: orders, phase: Back}\n").ended(t, 78, `the name "orders" is missing or there twice`)
}

// A table that was dropped keeps back neither the other adoptions nor the end of its own.
//
// CONTRACT: C-91
func TestAdoptApplyOfDroppedTable(t *testing.T) {
	t.Parallel()
	a := newAdopter(t)
	both := func(overview, orders string) string {
		return "adoptions:\n- " + overviewPlan + overview + "}\n- " + columnsPlan + orders + "}\n"
	}
	a.reached(t, both("Cutover", "Cutover"), "overview Cutover", "orders Cutover")
	a.exec(t, `drop table public.events`)
	a.apply(t, both("Cutover", "Back")).ended(t, 1, "adoption overview: ", "there is no table public.events", "adopt back --name overview")
	if got := pgtest.Value[string](a.admin, `select string_agg(name || ' ' || state, ', ' order by name) from outbox.outbox_adoptions`); got != "overview Live" {
		t.Errorf("adoptions %s, want only that of the dropped table", got)
	}
	a.reached(t, both("Back", "Back"), "overview Back", "orders Back")
}

// A plan may name the slot that a connector reads; its errors are the termination message of an Outbox's Job.
//
// CONTRACT: C-91
func TestAdoptApplyCutsOverDebezium(t *testing.T) {
	t.Parallel()
	a := newAdopter(t)
	slot := a.slot(t)
	a.exec(t, "create table public.outboxevent (id uuid primary key, aggregatetype text not null, aggregateid text not null, type text not null, payload jsonb); alter table public.outboxevent owner to "+a.owner+
		"; create publication orders for table public.outboxevent; alter role "+a.owner+" replication")
	plan := func(slot, phase string) string {
		return "adoptions:\n- {name: orders, layout: debezium, namespace: shop, slot: " + slot + ", publication: orders, phase: " + phase + "}\n"
	}
	a.apply(t, plan("unknown", "Shadow")).ended(t, 1)
	if !strings.Contains(a.left, "adoption orders: adopt shadow: there is no replication slot unknown; give the slot.name of the connector") {
		t.Errorf("it left %q", a.left)
	}
	a.reached(t, plan(slot, "Shadow"), "orders Shadow")
	a.exec(t, "insert into public.outboxevent values (gen_random_uuid(), 'Order', '1', 'OrderPlaced', '{}')")
	connector := a.connect(t, slot, "orders")
	a.apply(t, plan(slot, "Cutover")).ended(t, 1)
	if !strings.Contains(a.left, "stop the connector, and run it again") {
		t.Errorf("it left %q", a.left)
	}
	a.disconnect(t, connector, slot)
	a.reached(t, plan(slot, "Cutover"), "orders Cutover")
	if n := a.count(t, "status = 'pending' and topic = 'Order'"); n != 1 {
		t.Errorf("%d events wait, want that of the row", n)
	}
	a.reached(t, plan(slot, "Back"), "orders Back")
}
