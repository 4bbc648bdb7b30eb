package migrations_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// publish_outbox adds a checked event in the caller's transaction, which a dispatcher retries as M10 does.
// CONTRACT: C-10, C-13, C-90
// REQUIREMENT: M10-3
func TestM10PublishAddsACheckedEvent(t *testing.T) {
	t.Parallel()
	d := withM10(t, m10)
	pgtest.Exec(d, `begin`)
	d.publish("rolled back")
	pgtest.Exec(d, `rollback`)
	id := d.publish("42")
	need.That(t, d.publish("42") != id, "a second event of the aggregate has the id of the first")
	const row = `select concat_ws('|', seq, namespace, topic, aggregate_type, aggregate_id, event_type, payload, max_attempts, retry, headers, status, substring(id::text from 15 for 1), next_attempt_at = created_at)
		from outbox.outbox_events where seq = $1`
	if got, want := pgtest.Value[string](d, row, id), fmt.Sprint(id)+`|shop|m10|order|42|http:call|{"url": "https://example.com"}|32767|{"strategy": "PowerOfTwo"}|{}|pending|7|t`; got != want {
		t.Errorf("the row is\n%s, want\n%s", got, want)
	}
	for call, want := range map[string]string{
		`'order', '1', 'x', null`:                           "payload is missing",
		`'order', repeat('x', 1025), 'x', '{}'`:             "too long",
		`'order', '1', 'x', to_jsonb(repeat('x', 1048576))`: "1048578 bytes",
	} {
		need.Fails(t, want, "publish_outbox(%s): %v, want %q", need.Err(d.Exec(t.Context(), `select m10_recovery.publish_outbox(`+call+`)`)), call)
	}
	need.Want(t, 2, "%d events, want 2", d.events())
}

// As an upsert it replaces the payload of what no worker has claimed, and adds an event when one was: the consumer may know its
// old payload. Publishers at once make one event.
func TestM10PublishUpsert(t *testing.T) {
	t.Parallel()
	d := withM10(t, migrations.M10{Namespace: "shop", Topic: "m10", Upsert: true})
	publish := func(aggregate, event, payload string) int64 {
		t.Helper()
		return pgtest.Value[int64](d, `select m10_recovery.publish_outbox('order', $1, $2, to_jsonb($3::text))`, aggregate, event, payload)
	}
	d.mustEnqueue(`'shop', 'other', '{}', p_aggregate_type => 'order', p_aggregate_id => '42', p_event_type => 'paid'`)
	first := publish("42", "paid", "old")
	others := []int64{publish("43", "paid", "old"), publish("42", "sent", "old")}
	if second := publish("42", "paid", "new"); second != first || others[0] == first || others[1] == first {
		t.Errorf("published %d and then %d, with %v between", first, second, others)
	}
	d.claim("w", 1)
	third := publish("42", "paid", "newer")
	need.That(t, third != first, "the payload of an event that is being delivered was replaced")
	d.claim("w", 10)
	d.complete(third, "w", false) // the consumer may have handled it all the same
	fourth := publish("42", "paid", "newest")
	need.That(t, fourth != third && fourth != first && publish("42", "paid", "last") == fourth,
		"published %d after %d and %d, want an event of its own, whose payload is replaced", fourth, first, third)
	pgtest.Want(d, "new,newer,last", "payloads %s, want new,newer,last", `select string_agg(payload #>> '{}', ',' order by seq) from outbox.outbox_events where aggregate_id = '42' and event_type = 'paid' and topic = 'm10'`)
	need.That(t, need.Err(d.Exec(t.Context(), `select m10_recovery.publish_outbox('order', '', 'paid', '{}')`)) != nil, "an upsert without an aggregate was taken")

	// A second publisher waits for the first to commit.
	other := newDatabase(t, d.dsn)
	pgtest.Exec(d, `begin`)
	first = publish("99", "paid", "old")
	second := make(chan int64, 1)
	go func() {
		var id int64
		_ = other.QueryRow(t.Context(), `select m10_recovery.publish_outbox('order', '99', 'paid', '"new"')`).Scan(&id) // 0 is seen below
		second <- id
	}()
	pgtest.Eventually(d, "the second publisher waits", func() bool {
		return len(second) > 0 || pgtest.Value[int](d, `select count(*) from pg_locks where locktype = 'advisory' and not granted`) > 0
	})
	pgtest.Exec(d, `commit`)
	need.Want(t, first, "two publishers at once made %d and %d", <-second, first)
	pgtest.Want(d, 1, "%d events of one aggregate, want 1", `select count(*) from outbox.outbox_events where aggregate_id = '99'`)
}

// drained leaves large indexes of live rows that are empty, and says so: the planner takes each for one page.
const drained = `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload)
		select gen_random_uuid(), 'shop', 'm10', n::text, '{}' from generate_series(1, 8000) as n;
	update outbox.outbox_events set status = 'delivered';
	vacuum analyze outbox.outbox_events`

// Whatever the planner knows of a large table, nothing at all or what was true when it was empty, the functions look
// up their rows: no sequential scan, and pages in proportion to the batch.
// CONTRACT: C-2, C-90
func TestM10PlansReadIndexesAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("it counts what statements cost, and shows no race")
	}
	t.Parallel()
	const waiting = 4000
	for name, before := range map[string]string{"none": ``, "stale": `vacuum analyze outbox.outbox_events`, "drained": drained} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t, pgtest.Migrated(t))
			d.upM10("outbox", migrations.M10{Namespace: "shop", Topic: "m10", Upsert: true}, true)
			pgtest.Exec(d, `alter table outbox.outbox_events set (autovacuum_enabled = off)`)
			for statement := range strings.SplitSeq(before, ";") {
				pgtest.Exec(d, statement)
			}
			first := pgtest.Value[int](d, `select coalesce(max(seq), 0) from outbox.outbox_events`)
			pgtest.Exec(d, `insert into outbox.outbox_events (id, namespace, topic, aggregate_type, aggregate_id, event_type, payload, status)
				select gen_random_uuid(), 'shop', case n % 4 when 0 then 'm10' else 'other' end, 'order', n::text, 'paid', '{}', case n % 4 when 1 then 'delivered' else 'pending' end
				from generate_series(1, 4 * $1::integer) as n`, waiting)
			pgtest.Exec(d, `select m10_recovery.claim_outbox_events('w', 1), m10_recovery.complete_outbox_event(0, 'w', true), m10_recovery.publish_outbox('order', '0', 'paid', '{}')`) // which reads the catalogue
			held := pgtest.Value[string](d, `select id::text from m10_recovery.claim_outbox_events('w', 1)`)
			statements := []struct {
				sql     string
				buffers int
			}{
				// A row that is claimed costs its two versions, the index and the fillfactor's pages.
				{`select * from m10_recovery.claim_outbox_events('w', 100)`, 100 * 30},
				{`select * from m10_recovery.claim_outbox_events('w', 10)`, 10 * 30},
				{`select m10_recovery.complete_outbox_event(` + fmt.Sprint(first+4*waiting) + `, 'w', true)`, 100},
				{`select m10_recovery.complete_outbox_event(` + held + `, 'w', false, 'refused')`, 100},
				{`select m10_recovery.publish_outbox('order', '16000', 'paid', '{"n": 1}')`, 120},
				{`select m10_recovery.publish_outbox('order', 'new', 'paid', '{"n": 1}')`, 120},
			}
			for _, s := range statements {
				buffers := d.costs(t, s.sql)
				t.Logf("%s: %d buffers", s.sql, buffers)
				need.That(t, buffers <= s.buffers, "%s reads %d buffers, want at most %d", s.sql, buffers, s.buffers)
			}
		})
	}
}

// costs runs a statement, wants it to read no table of events from end to end, and returns how many buffers it took.
func (d database) costs(t *testing.T, sql string) int {
	t.Helper()
	const scans = `select coalesce(sum(seq_scan), 0) from pg_stat_xact_user_tables where relname like 'outbox_%'`
	pgtest.Exec(d, `begin`)
	defer pgtest.Exec(d, `commit`)
	before := pgtest.Value[int](d, scans)
	var text []byte
	if err := d.QueryRow(t.Context(), `explain (analyze, buffers, format json) `+sql).Scan(&text); err != nil {
		t.Fatal(fmt.Errorf("%s: %w", sql, err))
	}
	need.Want(t, 0, "%s makes %d sequential scans", pgtest.Value[int](d, scans)-before, sql)
	var out []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	need.OK(t, json.Unmarshal(text, &out))
	return out[0].Plan.Hit + out[0].Plan.Read
}
