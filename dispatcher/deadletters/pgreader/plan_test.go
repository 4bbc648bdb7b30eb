package pgreader

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// plan is a node of EXPLAIN's JSON.
type plan struct {
	Node  string  `json:"Node Type"`
	Index string  `json:"Index Name"`
	Table string  `json:"Relation Name"`
	Hit   int64   `json:"Shared Hit Blocks"`
	Read  int64   `json:"Shared Read Blocks"`
	Rows  float64 `json:"Actual Rows"`
	Loops float64 `json:"Actual Loops"`
	Off   float64 `json:"Rows Removed by Filter"`
	Plans []plan  `json:"Plans"`
}

// looked counts the rows that the scans of the plan read.
func (p plan) looked() (rows float64) {
	if p.Table != "" || p.Index != "" {
		rows = (p.Rows + p.Off) * p.Loops
	}
	for _, child := range p.Plans {
		rows += child.looked()
	}
	return rows
}

// has reports whether a node of the plan is like that.
func (p plan) has(like func(plan) bool) bool {
	if like(p) {
		return true
	}
	for _, child := range p.Plans {
		if child.has(like) {
			return true
		}
	}
	return false
}

// explain runs a statement, and returns its plan and the text of it.
func explain(t *testing.T, pool pgtest.DB, sql string, args []any) (plan, string) {
	t.Helper()
	var text string
	args = append([]any{pgx.QueryExecModeExec}, args...)
	if err := pool.QueryRow(t.Context(), "explain (analyze, buffers, format json) "+sql, args...).Scan(&text); err != nil {
		t.Fatal(err)
	}
	var out []struct{ Plan plan }
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out[0].Plan, text
}

// With 100,000 open dead letters in 30 groups, and as many that were resolved after them, a statement reads what it returns,
// or the dead letters of its groups once. The counts are rows and pages, so that they hold on any machine.
// REQUIREMENT: STORAGE-21, STORAGE-24
func TestStatementsReadABoundedNumberOfRows(t *testing.T) {
	if testing.Short() {
		t.Skip("it fills tables with 100,000 dead letters")
	}
	t.Parallel()
	dsn := pgtest.Migrated(t)
	pool := pgtest.Open(t, dsn)
	r := New(func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, dsn) }, Options{Namespace: "shop"})
	pgtest.Exec(pool, `insert into outbox.outbox_events (id, namespace, topic, dedupe_key, payload, status, dead_reason)
		select md5(n::text)::uuid, 'shop', 'topic-' || n % 10, 'key-' || n, '{}', 'dead', 'permanent_failure' from generate_series(1, 100000) as n`)
	pgtest.Exec(pool, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, event_type, reason, class, code, attempts, dead_at, error, resolution, resolved_at, resolved_by)
		select md5(n::text)::uuid, 'shop', 'topic-' || n % 10, 'Type', 'permanent_failure', 'http', (n % 30)::text, 20, now() - interval '2 days' + n * interval '1 second',
			repeat('the consumer responded 422 ', 20), case when n > 100000 then 'replayed' end, case when n > 100000 then now() end, case when n > 100000 then 'ada' end
		from generate_series(1, 200000) as n`)

	pgtest.Exec(pool, `insert into outbox.outbox_journal (at, lsn, xid, event_id, operation, namespace, topic, login)
		select now() - n % 7 * interval '1 day', '0/0'::pg_lsn + n, pg_current_xact_id(), md5((n % 40000)::text)::uuid, 'claim', 'shop', 'topic-0', 'ada' from generate_series(1, 200000) as n`)

	for _, statistics := range []string{"missing", "fresh"} {
		if statistics == "fresh" {
			pgtest.Exec(pool, "vacuum analyze outbox.outbox_journal")
			pgtest.Exec(pool, "vacuum analyze outbox.outbox_dead_letters")
			pgtest.Exec(pool, "vacuum analyze outbox.outbox_events")
		}
		groups := func(f deadletters.Filter) (string, []any) {
			return r.where("groups", f, r.namespace, deadletters.MaxGroups, deadletters.GroupCap)
		}
		list := func(f deadletters.Filter, before int64) (string, []any) {
			return r.where("dead_letters", f, before, deadletters.DefaultLimit+1, false)
		}
		one := fingerprintOf(t, pool)
		for name, c := range map[string]struct {
			sql   func() (string, []any)
			rows  float64 // the most that it reads
			pages int64
		}{
			"groups":                  {func() (string, []any) { return groups(deadletters.Filter{}) }, 100_000 + 300, 110_000},
			"one group":               {func() (string, []any) { return groups(deadletters.Filter{Group: one}) }, 15_000, 20_000},
			"resolved":                {func() (string, []any) { return list(deadletters.Filter{Resolved: true}, math.MaxInt64) }, 200, 200},
			"a later page":            {func() (string, []any) { return list(deadletters.Filter{}, 50_000) }, 200, 400},
			"the first page":          {func() (string, []any) { return list(deadletters.Filter{}, math.MaxInt64) }, 200_000, 110_000},
			"a group's page":          {func() (string, []any) { return list(deadletters.Filter{Group: one}, math.MaxInt64) }, 200_000, 110_000},
			"an error's page":         {func() (string, []any) { return list(deadletters.Filter{ErrorContains: "nothing"}, math.MaxInt64) }, 200_000, 110_000},
			"an event's dead letters": {func() (string, []any) { return list(deadletters.Filter{IDs: []string{eventID(1)}}, math.MaxInt64) }, 100, 100},
			"an event": {func() (string, []any) {
				return r.sql("event"), []any{eventID(1), "shop", nil, true, deadletters.MaxPayload}
			}, 10, 20},
			"an event's journal": {func() (string, []any) {
				return r.sql("journal"), []any{"28dd2c79-55ce-9264-5624-0b2ff0100bde", "shop", nil, 501}
			}, 100, 200},
			"a dedupe key": {func() (string, []any) { return r.sql("dedupe"), []any{"key-77", "shop", nil} }, 100, 200},
		} {
			if statistics == "missing" && name != "an event's journal" { // then it may read every open dead letter, and no more
				c.rows, c.pages = 200_000, 210_000
			}
			sql, args := c.sql()
			p, text := explain(t, pool, sql, args)
			t.Logf("%s, statistics %s: %.0f rows, %d pages", name, statistics, p.looked(), p.Hit+p.Read)
			if p.looked() > c.rows || p.Hit+p.Read > c.pages {
				t.Errorf("%s, statistics %s: it read %.0f rows and %d pages, want %.0f and %d at most:\n%s", name, statistics, p.looked(), p.Hit+p.Read, c.rows, c.pages, text)
			}
			if strings.Contains(name, "groups") && p.has(func(p plan) bool { return strings.Contains(p.Node, "Seq Scan") && p.Table != "" }) {
				t.Errorf("%s, statistics %s: it reads the table from end to end:\n%s", name, statistics, text)
			}
		}
	}
}

func fingerprintOf(t *testing.T, pool pgtest.DB) (group string) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), "select fingerprint from outbox.outbox_dead_letters order by id limit 1").Scan(&group); err != nil {
		t.Fatal(err)
	}
	return group
}
