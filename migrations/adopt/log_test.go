package adopt_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations/adopt"
)

// Producers write on while a table that Debezium reads is adopted, cut over with the connector stopped, and given back. Each
// event that was committed is sent, also of rows that were deleted at once. Both send what the connector has sent and not confirmed,
// and nothing else.
//
// CONTRACT: C-91
func TestDebeziumEachEventSentByOneSide(t *testing.T) {
	r, dsn := newLogRig(t)
	l := newLedger()
	p := producers{rig: r, ledger: l}
	connector := r.connect(dsn, l, 7)
	wait := p.start(2400)

	p.reach(200)
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.ToShadow, adopt.Shadow, false)
	p.reach(800)
	s := r.status()
	need.That(t, s.OK() && s.Rows+s.Notes == 0 && s.Slot != nil && s.Slot.Active && !s.Slot.Missing, "in the shadow: %+v", s)
	r.eventually("the connector is behind at a moment", func() bool { return r.status().Slot.Behind > 0 })
	need.Fails(t, "stop the connector", "a cut-over with the connector at work: %v", need.Err(r.try(adopt.Cutover, adopt.Options{})))
	r.eventually("the connector has sent some", func() bool {
		n := 0
		l.do(func() { n = len(l.theirs) })
		return n > 700
	})
	unconfirmed := connector.crash(l)
	need.Want(t, 0, "%d events and notes in the shadow", pgtest.Value[int](r, `select count(*) from outbox.outbox_events`)+pgtest.Value[int](r, `select count(*) from outbox.outbox_adopted`))
	moved := r.step(adopt.Cutover, adopt.Live, true)
	stopDispatcher := r.dispatch(l)
	p.reach(1400)
	r.step(adopt.Cutover, adopt.Live, false)
	wait()
	r.deliverAll()
	stopDispatcher()
	r.check(l)
	both := map[int]bool{}
	for n := range l.ours {
		if l.theirs[n] > 0 {
			both[n] = true
		}
	}
	need.That(t, maps.Equal(both, unconfirmed), "both sent %v, want %v, which the connector has sent and not confirmed", both, unconfirmed)
	theirs, ours := len(l.theirs), len(l.ours)

	// No connector sends until the way back; the connector sends the rest.
	wait = p.start(600)
	p.reach(2400)
	returned := r.step(adopt.Back, adopt.None, true)
	connector = r.connect(dsn, l, 7)
	wait()
	r.eventually("the connector has sent the rest", func() bool {
		missing := 0
		l.do(func() {
			for n := range l.committed {
				if l.theirs[n]+l.ours[n] == 0 {
					missing++
				}
			}
		})
		return missing == 0
	})
	connector.close()
	r.check(l)
	for n := range l.ours {
		need.That(t, l.theirs[n] == 0 || unconfirmed[n], "the connector has sent event %d again", n)
	}
	need.Want(t, 0, "%d things are left after the way back", pgtest.Value[int](r, `select count(*) from outbox.outbox_events where live`)+pgtest.Value[int](r, `select count(*) from outbox.outbox_adopted`)+
		pgtest.Value[int](r, `select count(*) from pg_trigger where tgname like 'outbox\_adopt%'`))
	// A row whose producer has deleted it is deleted again.
	pgtest.Want(r, 0, "%d rows are there again", `select count(*) from outboxevent where (payload ->> 'n')::integer % 2 = 0`)
	t.Logf("committed %d, rolled back %d; moved %d, returned %d, both %d; delivered by theirs %d, ours %d at the end of the cut-over, %d and %d in all",
		len(l.committed), len(l.rolledBack), moved.Moved, returned.Returned, len(both), theirs, ours, len(l.theirs), len(l.ours))
	need.That(t, moved.Moved != 0 && returned.Returned != 0 && len(both) != 0, "one side had nothing to do")
}

// A transaction has inserted before the position that the connector has confirmed, and commits after it; without
// waiting for the disk. It comes along, and what is confirmed does not.
//
// CONTRACT: C-91
func TestDebeziumTransactionAcrossTheConfirmedPosition(t *testing.T) {
	r, dsn := newLogRig(t)
	l := newLedger()
	connector := r.connect(dsn, l, 1)
	r.step(adopt.ToShadow, adopt.Shadow, true)
	late, err := r.Begin(t.Context())
	need.OK(t, err)
	defer func() { _ = late.Rollback(context.WithoutCancel(t.Context())) }()
	need.OK(t, need.Err(late.Exec(t.Context(), `set local synchronous_commit = off`)))
	need.OK(t, r.old.produce(t.Context(), late, 2))
	inserted := pgtest.Value[string](r, `select pg_current_wal_insert_lsn()::text`)
	r.produce(t.Context(), 1)
	r.eventually("the connector has confirmed what came later", func() bool {
		return pgtest.Value[bool](r, `select confirmed_flush_lsn > $1::text::pg_lsn from pg_replication_slots where slot_name = $2`, inserted, r.old.spec.Slot)
	})
	connector.close()
	need.OK(t, late.Commit(t.Context()))
	result := r.step(adopt.Cutover, adopt.Live, true)
	need.That(t, result.Moved == 1 && result.Refused == 0, "moved %d, refused %d, want 1", result.Moved, result.Refused)
	got := r.numbers()
	need.That(t, got == "2" && l.theirs[1] == 1 && l.theirs[2] == 0, "events %q, and the connector has sent %v; want 2, and 1", got, l.theirs)
	const as = `select (id, namespace, topic, event_type, aggregate_type, aggregate_id, dedupe_key)
		= (md5('2')::uuid, 'shop', 'Order', 'OrderCreated', 'Order', '2', md5('2')::uuid::text) from outbox.outbox_events`
	need.That(t, pgtest.Value[bool](r, as), "the event is not that of the row")
}

// Rows go back as they were, also those that the outbox has refused, and the slot holds nothing else.
func TestDebeziumRowsGoBack(t *testing.T) {
	r, _ := newLogRig(t)
	insert := func(id, aggregate, payload string) {
		t.Helper()
		r.exec(`insert into outboxevent (id, aggregatetype, aggregateid, type, payload, "Spuren""id", raw, at)
			values (md5('` + id + `')::uuid, '` + aggregate + `', '1', 'T', ` + payload + `, E'"a"\\\n\u00fc', '\x00ff', '2020-01-02 03:04:05.678Z')`)
	}
	r.step(adopt.ToShadow, adopt.Shadow, true)
	insert("shadow", "", `'{"n": 1}'`)
	s := r.status()
	need.That(t, !s.OK() && s.Refused == 1 && s.Rows == 0 && s.Notes == 0 && s.OpenRows == 0, "status %+v", s)
	insert("open", "Order", `'{"n": 2}'`)
	result := r.step(adopt.Cutover, adopt.Live, true)
	need.That(t, result.Moved == 1 && result.Refused == 1, "moved %d, refused %d, want 1 and 1", result.Moved, result.Refused)
	insert("live", "Order", `'{"n": 3, "text": "\u00fc", "big": 9007199254740993}'`)
	insert("none", "Order", `null`)
	r.exec(`delete from outboxevent where type = 'T' and payload ->> 'n' = '3'`)
	insert("delivered", "Order", `'{"n": 4}'`)
	s = r.status()
	need.That(t, s.Refused == 2 && s.OpenEvents == 3, "status %+v", s)
	r.exec(`update outbox.outbox_events set status = 'delivered' where payload ->> 'n' = '4'`)
	const rows = `select coalesce(string_agg(to_jsonb(o)::text, ' ' order by id), '') from outboxevent as o`
	before := pgtest.Value[string](r, rows)
	r.exec(`create table limits (step text); create function note() returns trigger language plpgsql as
			'begin insert into public.limits values (current_setting(''statement_timeout'')); return new; end';
		create trigger noted before insert on outboxevent for each row execute function note()`)
	result = r.step(adopt.Back, adopt.None, true)
	need.Want(t, 4, "returned %d, want 4", result.Returned)
	pgtest.Want[string](r, before, "their table has\n%s\nwant\n%s", rows)
	// 5 ms for each note that has a row: of these, and of the one that is delivered.
	pgtest.Want(r, "600025ms", "the limit was %s", `select string_agg(distinct step, ', ') from limits`)
	held := pgtest.Value[string](r, `select string_agg(row::text, ' ' order by row ->> 'id')
		from outbox.outbox_adopt_log($1, 'dbz_publication', 'outboxevent') as row`, r.old.spec.Slot)
	for _, id := range []string{"shadow", "open", "live", "none"} {
		need.Want(t, 1, "the slot has row %s %d times", strings.Count(held, pgtest.Value[string](r, `select md5($1)::uuid::text`, id)), id)
	}
	for _, text := range []string{`"big": 9007199254740993`, `"payload":null`, `"Spuren\"id":"\"a\"\\\nü"`, `"raw":"\\x00ff"`} {
		need.That(t, strings.Contains(held, text), "the slot has %s, and not %s", held, text)
	}
	n := strings.Count(held, `"raw"`)
	need.That(t, n == 4, "the slot has %d rows: %s", n, held)
}

// The side table keeps a row until its event is delivered. Those of dead events stay, and keep no other from being removed.
func TestDebeziumNotesArePruned(t *testing.T) {
	r, _ := newLogRig(t)
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.step(adopt.Cutover, adopt.Live, true)
	produce := func(from, to int) {
		t.Helper()
		for n := from; n < to; n++ {
			r.produce(t.Context(), n)
		}
	}
	produce(0, 300)
	r.exec(`update outbox.outbox_events set status = 'dead', dead_reason = 'test' where (payload ->> 'n')::integer < 150`)
	r.exec(`update outbox.outbox_events set status = 'delivered' where (payload ->> 'n')::integer between 150 and 279`)
	produce(300, 380)
	got := pgtest.Value[string](r, `select string_agg(status || ' ' || n, ', ' order by status) from (
		select e.status, count(*) as n from outbox.outbox_adopted as a join outbox.outbox_events as e on e.id = a.event_id group by e.status) as s`)
	want := "dead 150, pending 100"
	need.Want(t, want, "notes of %s, want %s", got)
}

// What cannot be done says why, and what to do.
func TestDebeziumErrorsNameTheRemedy(t *testing.T) {
	r, _ := newLogRig(t)
	slot := r.old.spec.Slot
	for want, spec := range map[string]adopt.Spec{
		"there is no replication slot other; give the slot.name of the connector (--slot)":                                         {Slot: "other"},
		`the slot "Other" cannot be used`:                                                                                          {Slot: "Other"},
		"publication other does not publish what is inserted into table public.outboxevent":                                        {Slot: slot, Publication: "other"},
		"the layout m10 has no replication slot":                                                                                   {Layout: adopt.M10, Topic: "t", Slot: "debezium"},
		"slot physical_" + slot + " is a physical one; give the slot.name":                                                         {Slot: "physical_" + slot},
		"slot plugin_" + slot + " has the plugin test_decoding, and an adoption reads pgoutput; give the connector plugin.name pg": {Slot: "plugin_" + slot},
	} {
		for prefix, create := range map[string]string{"physical_": "pg_create_physical_replication_slot($1)", "plugin_": "pg_create_logical_replication_slot($1, 'test_decoding')"} {
			if strings.HasPrefix(spec.Slot, prefix) {
				r.exec("select "+create, spec.Slot)
				defer r.exec(`select pg_drop_replication_slot($1)`, spec.Slot)
			}
		}
		other := r
		other.old.spec = spec
		other.old.spec.Namespace, other.old.spec.Layout = "shop", cmp.Or(spec.Layout, adopt.Debezium)
		need.Fails(t, want, "got %v, want %s", need.Err(other.try(adopt.ToShadow, adopt.Options{})))
	}
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.produce(t.Context(), 1)
	r.produce(t.Context(), 2)
	need.Fails(t, "slot "+r.old.spec.Slot+" holds more than 1 rows", "more rows than wanted: %v", need.Err(r.try(adopt.Cutover, adopt.Options{MaxRows: 1})))
	if result, err := r.try(adopt.Cutover, adopt.Options{DryRun: true}); err != nil || result.Moved != 2 || !strings.Contains(strings.Join(result.SQL, "\n"), "outbox_adopt_log('"+r.old.spec.Slot+"'") {
		t.Errorf("a dry run: %+v, %v", result, err)
	}
	result := r.step(adopt.Cutover, adopt.Live, true)
	need.Want(t, 2, "moved %d", result.Moved)
	r.exec(`select pg_drop_replication_slot($1)`, r.old.spec.Slot)
	s := r.status()
	need.That(t, s.Slot != nil && s.Slot.Missing && !s.Slot.Active && strings.Contains(s.Next, "nothing can go back to the connector"), "without a slot: %+v", s)
	need.Fails(t, "select pg_create_logical_replication_slot('"+r.old.spec.Slot+"', 'pgoutput')", "back without a slot: %v", need.Err(r.try(adopt.Back, adopt.Options{})))
	r.exec(`select pg_create_logical_replication_slot($1, 'pgoutput')`, r.old.spec.Slot)
	result = r.step(adopt.Back, adopt.None, true)
	need.Want(t, 2, "returned %d", result.Returned)
}

// held are the numbers of the rows that the slot has, in its order, as "4 2 4".
func (r rig) held() string {
	r.Helper()
	return pgtest.Value[string](r, `select coalesce(string_agg(row -> 'payload' ->> 'n', ' ' order by at), '')
		from outbox.outbox_adopt_log($1, 'dbz_publication', 'outboxevent') with ordinality as l (row, at)`, r.old.spec.Slot)
}

// A row that the outbox has refused is tried again as it is in their table by then. The name of the adoption is that of a
// function of ours, and its steps can be repeated.
func TestDebeziumRefusedRowIsSentOnceFixed(t *testing.T) {
	r, _ := newLogRig(t)
	r.exec(`create domain note as jsonb; alter table outboxevent add note note`)
	r.old.spec.Name = "log"
	r.step(adopt.ToShadow, adopt.Shadow, true)
	r.old.spec.Namespace = "market"
	r.step(adopt.ToShadow, adopt.Shadow, true)
	const insert = `insert into outboxevent (id, aggregatetype, aggregateid, type, payload, note) values (md5('%[1]d')::uuid, repeat('T', %[2]d), '1', 'T', '{"n": %[1]d}', '{"n": %[1]d}')`
	for n := 1; n <= 4; n++ {
		r.exec(fmt.Sprintf(insert, n, 1-n%2))
		if n == 2 {
			result := r.step(adopt.Cutover, adopt.Live, true)
			need.That(t, result.Moved == 1 && result.Refused == 1, "moved %d, refused %d", result.Moved, result.Refused)
		}
	}
	r.exec(`update outboxevent set aggregatetype = 'fixed' where aggregatetype = ''; delete from outboxevent where payload ->> 'n' = '3'`)
	if result := r.step(adopt.Cutover, adopt.Live, true); result.Moved != 1 || result.Refused != 1 || r.numbers() != "2 4 1" {
		t.Errorf("moved %d, refused %d, events %s", result.Moved, result.Refused, r.numbers())
	}
	if result := r.step(adopt.Back, adopt.None, true); result.Returned != 4 || r.held() != "1 2 3 4" {
		t.Errorf("returned %d, and the slot has %s", result.Returned, r.held())
	}
	pgtest.Want(r, "fixedtrue Ttrue Ttrue", "their table has %s", `select string_agg(aggregatetype || (note = payload), ' ' order by payload ->> 'n') from outboxevent`)
}

// The steps work in every mode of the driver.
func TestStepsInEveryQueryMode(t *testing.T) {
	pgtest.EachMode(t, func(t *testing.T, mode pgtest.Mode) {
		steps := func(r rig, produce func(n int)) {
			conn, err := pgx.Connect(r.Context(), mode.In(r.Pool.Config().ConnString()))
			need.OK(r, err)
			r.Cleanup(func() { _ = conn.Close(context.WithoutCancel(r.Context())) })
			for n, step := range []adopt.Step{adopt.ToShadow, adopt.Cutover, adopt.Cutover, adopt.Back} {
				need.OK(r, need.Err(adopt.Apply(r.Context(), conn, pgtest.Schema, step, r.old.spec, adopt.Options{})))
				produce(n)
				all, err := adopt.Read(r.Context(), conn, pgtest.Schema, "")
				need.That(r, err == nil && (len(all) != 1 || all[0].OK()), "after %s: %+v, %v", step, all, err)
			}
		}
		t.Run("poller", func(t *testing.T) {
			r := newRig(t, keyedService("integer", `, primary key (id))`))
			r.old.spec.Table = "keyed" // in public
			steps(r, func(n int) { r.exec(fmt.Sprintf(`insert into keyed (id) values (%d)`, n)) })
		})
		t.Run("debezium", func(t *testing.T) {
			r, _ := newLogRig(t)
			steps(r, func(n int) { r.produce(t.Context(), n) })
			need.Want(t, "0 1 2 3", "the slot has %s", r.held())
		})
	})
}
