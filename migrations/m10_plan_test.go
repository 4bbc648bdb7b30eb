package migrations_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// drained leaves large indexes of live rows that are empty, and says so: the planner takes each for one page.
const drained = `insert into outbox.outbox_events (id, namespace, topic, aggregate_id, payload)
		select gen_random_uuid(), 'shop', 'm10', n::text, '{}' from generate_series(1, 8000) as n;
	update outbox.outbox_events set status = 'delivered';
	vacuum analyze outbox.outbox_events`

// Whatever the planner knows of a large table, nothing at all or what was true when it was empty, the functions look
// up their rows: no sequential scan, and pages in proportion to the batch.
// CONTRACT: C-2, C-90
func TestM10Plans(t *testing.T) {
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
				if buffers > s.buffers {
					t.Errorf("%s reads %d buffers, want at most %d", s.sql, buffers, s.buffers)
				}
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
	if n := pgtest.Value[int](d, scans) - before; n != 0 {
		t.Errorf("%s makes %d sequential scans", sql, n)
	}
	var out []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out[0].Plan.Hit + out[0].Plan.Read
}
