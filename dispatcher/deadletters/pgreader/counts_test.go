package pgreader

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/monitor"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// addDead adds open dead letters of a topic, which is a group, of ten tenants, types and aggregates.
func addDead(t *testing.T, pool pgtest.DB, topic string, n int) {
	t.Helper()
	pgtest.Exec(pool, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, event_type, aggregate_type, aggregate_id, tenant_id, reason, attempts, dead_at)
		select gen_random_uuid(), 'shop', $1::text, 'Type' || n % 2, 'order', (n % 3)::text, case when n % 4 > 0 then md5((n % 4)::text)::uuid end,
			'permanent_failure', 20, now() from generate_series(1, $2::integer) as n`, topic, n)
}

// A large group is counted whole where the table is small. Where it is not, its count is an estimate, each time the same, and
// never less than what was counted.
func TestLargeGroupsKeepTheirPlace(t *testing.T) {
	if testing.Short() {
		t.Skip("it adds 35,000 dead letters")
	}
	t.Parallel()
	pool, r := outbox(t)
	for topic, n := range map[string]int{"a": 10_002, "b": 10_500, "c": deadletters.GroupCap + 1, "d": 4000, "e": 500, "f": deadletters.GroupCap} {
		addDead(t, pool, topic, n)
	}
	listed := func() (all []string) {
		t.Helper()
		groups, err := r.Groups(t.Context(), deadletters.Filter{})
		need.OK(t, err)
		for _, g := range groups.Groups {
			all = append(all, g.Topic+" "+g.Number())
		}
		return all
	}
	if got, want := listed(), []string{"b 10500", "a 10002", "c 10001", "f 10000", "d 4000", "e 500"}; !slices.Equal(got, want) {
		t.Errorf("counted whole: %v, want %v", got, want)
	}
	addDead(t, pool, "a", 100_000)
	r.pages = 200
	got, err := r.Groups(t.Context(), deadletters.Filter{})
	need.OK(t, err)
	a := got.Groups[0]
	need.That(t, len(got.Groups) == 6 && a.Topic == "a" && a.Estimated && !a.AtLeast && a.Count > 80_000 && a.Count < 140_000, "by a sample: %+v", got.Groups)
	for _, g := range got.Groups[1:] {
		exact := map[string]int64{"f": 10_000, "d": 4000, "e": 500}[g.Topic]
		need.That(t, exact == 0 && g.Count >= deadletters.GroupCap && g.Estimated != g.AtLeast || g.Count == exact && !g.Estimated && !g.AtLeast, "by a sample: %+v", g)
	}
	want := listed()
	for range 5 {
		if got := listed(); !slices.Equal(got, want) {
			t.Fatalf("looked at again: %v, want %v", got, want)
		}
	}
}

// The most groups are those that match, wherever they are among the others.
func TestGroupsThatMatchAreFoundAmongMore(t *testing.T) {
	t.Parallel()
	pool, r := outbox(t)
	pgtest.Exec(pool, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, class, code, attempts)
		select gen_random_uuid(), 'shop', 'a', 'permanent_failure', 'http', n::text, 20 from generate_series(1, $1::integer) as n`, deadletters.MaxGroups+30)
	addDead(t, pool, "z", 3)
	for _, f := range []deadletters.Filter{{Topic: "z"}, {Type: "Type1"}} {
		got, err := r.Groups(t.Context(), f)
		need.That(t, err == nil && len(got.Groups) == 1 && got.Groups[0].Topic == "z" && !got.More, "%+v: %d groups, more %t, %v", f, len(got.Groups), got.More, err)
	}
	if got, err := r.Groups(t.Context(), deadletters.Filter{}); err != nil || len(got.Groups) != deadletters.MaxGroups || !got.More {
		t.Errorf("without a filter: %d groups, more %t, %v", len(got.Groups), got.More, err)
	}
}

// Dead letters are counted by tenant, type or aggregate, the largest count first, those of the filter alone.
func TestCountByPutsTheLargestFirst(t *testing.T) {
	t.Parallel()
	pool, r := outbox(t, "orders", "bills")
	addDead(t, pool, "orders", 24)
	addDead(t, pool, "bills", 2)
	addDead(t, pool, "others", 7) // of another dispatcher
	counts := func(f deadletters.Filter, by deadletters.By) (all []string) {
		t.Helper()
		got, err := r.CountBy(t.Context(), f, by)
		need.Must(t, err == nil && got.By == by && !got.More, "%+v, %v", got, err)
		for _, c := range got.Counts {
			all = append(all, fmt.Sprintf("%.4s %d %d", c.Value, c.Count, c.Groups))
			need.That(t, !c.Since.IsZero() && !c.Last.Before(c.Since), "%+v has no times", c)
		}
		return all
	}
	for by, want := range map[deadletters.By][]string{
		deadletters.ByTenant:    {"c4ca 7 2", "c81e 7 2", " 6 1", "eccb 6 1"},
		deadletters.ByType:      {"Type 13 2", "Type 13 2"},
		deadletters.ByAggregate: {"orde 9 2", "orde 9 2", "orde 8 1"},
	} {
		need.WantAll(t, want, "by %s: %v, want %v", counts(deadletters.Filter{}, by), by)
	}
	if got, want := counts(deadletters.Filter{Topic: "bills"}, deadletters.ByType), []string{"Type 1 1", "Type 1 1"}; !slices.Equal(got, want) {
		t.Errorf("of a topic: %v, want %v", got, want)
	}
	addDead(t, pool, "orders", deadletters.MaxGroups+30)
	pgtest.Exec(pool, `update outbox.outbox_dead_letters set aggregate_id = id`)
	if got, err := r.CountBy(t.Context(), deadletters.Filter{}, deadletters.ByAggregate); err != nil || len(got.Counts) != deadletters.MaxGroups || !got.More {
		t.Errorf("%d aggregates, more %t, %v", len(got.Counts), got.More, err)
	}
}

// A forwarded port changes no row: each method at each path of the pod's server leaves every version of every row as it
// was. CONTRACT: C-42
func TestForwardedPortChangesNoRow(t *testing.T) {
	t.Parallel()
	pool, r := outbox(t)
	story(t, pool)
	server := httptest.NewServer(monitor.Handler(monitor.Process{StartedAt: time.Now()}, monitor.Sources{
		Snapshot: func() dispatcher.Snapshot { return dispatcher.Snapshot{} }, Backlog: func() *dispatcher.Depth { return nil },
		OldestTransaction: func() *dispatcher.OldestTransaction { return nil }, DeadLetters: r,
	}, prometheus.NewRegistry()))
	defer server.Close()
	before, succeeded := rows(t, pool), 0
	for _, path := range []string{
		"/", "/healthz", "/readyz", "/status", "/status?brief", "/metrics", "/dead", "/dead/", "/dead/groups", "/dead?group=7f3a9c21", "/dead/4", "/dead/4?payload=true",
		"/dead/4/replay", "/dead/replay", "/dead/discard", "/dead/" + eventID(1), "/events", "/events/", "/events/" + eventID(1), "/events/key-1?payload=true",
		"/dead?errorContains=%27%3Bdelete+from+outbox.outbox_events%3B--", "/events/x%27%3B%20delete%20from%20outbox.outbox_events%3B%20--",
	} {
		for _, method := range []string{
			http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, http.MethodTrace, "REPLAY",
		} {
			request, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(`{"action": "replay", "all": true}`))
			need.OK(t, err)
			request.Header.Set("X-HTTP-Method-Override", http.MethodDelete)
			response, err := http.DefaultClient.Do(request)
			need.OK(t, err)
			_ = response.Body.Close()
			reads := method == http.MethodGet || method == http.MethodHead
			switch {
			case reads && response.StatusCode == http.StatusOK:
				succeeded++
			case !reads && response.StatusCode != http.StatusMethodNotAllowed && response.StatusCode != http.StatusNotFound:
				t.Errorf("%s %s gets %s, want 404 or 405", method, path, response.Status)
			}
			if now := rows(t, pool); now != before {
				t.Fatalf("%s %s has changed rows:\n%s\nwere\n%s", method, path, now, before)
			}
		}
	}
	need.That(t, succeeded >= 2*12, "%d requests succeeded, want 24: is it a pod's server?", succeeded)
}

// rows returns the versions of all rows of the schema. A row that is written again, even unchanged, has another version.
func rows(t *testing.T, pool pgtest.DB) string {
	t.Helper()
	names, err := pool.Query(t.Context(), "select format('%I.%I', schemaname, tablename) from pg_tables where schemaname = 'outbox' order by 1")
	need.OK(t, err)
	var out strings.Builder
	var tables []string
	for names.Next() {
		var name string
		need.OK(t, names.Scan(&name))
		tables = append(tables, name)
	}
	if names.Err() != nil || len(tables) < 3 {
		t.Fatalf("tables %v: %v", tables, names.Err())
	}
	for _, table := range tables {
		var versions string
		need.OK(t, pool.QueryRow(t.Context(), "select coalesce(string_agg(concat_ws(' ', t.ctid, t.xmin, md5(t::text)), ', ' order by t.ctid), '') from "+table+" t").Scan(&versions))
		fmt.Fprintf(&out, "%s: %s\n", table, versions)
	}
	return out.String()
}

// An event's history has its records of the journal: the oldest first, a bounded number, also when its row is gone, and
// only those of the reader's namespace and topics.
//
// CONTRACT: C-61
func TestHistoryHasTheJournal(t *testing.T) {
	t.Parallel()
	pool, r := outbox(t, "orders")
	pgtest.Exec(pool, `select outbox.outbox_journal_set(true)`)
	story(t, pool)
	operations := func(id string) (all []string) {
		t.Helper()
		history, err := r.Event(t.Context(), id, false)
		need.OK(t, err)
		for _, record := range history.Journal {
			all = append(all, record.Operation)
			need.That(t, record.LSN != "" && record.Transaction != "" && record.Login != "" && !record.At.IsZero() && record.Topic == "orders", "a record is %+v", record)
		}
		return all
	}
	pgtest.Exec(pool, `update outbox.outbox_events set status = 'processing', lease = 8, locked_by = id, locked_until = now() where id = $1`, eventID(6))
	if got := operations("key-6"); len(got) != 2 || got[0] != "insert" || got[1] != "claim" {
		t.Errorf("the records are %v", got)
	}
	pgtest.Exec(pool, `delete from outbox.outbox_events where id = $1`, eventID(6))
	if got := operations(eventID(6)); len(got) != 3 || got[2] != "change" {
		t.Errorf("of a row that is gone the records are %v", got)
	}
	for _, n := range []int{3, 5} { // of another topic, and of another namespace
		history, err := r.Event(t.Context(), eventID(n), false)
		need.That(t, err != nil, "event %d: %+v", n, history)
	}
	for range deadletters.MaxRecords {
		pgtest.Exec(pool, `update outbox.outbox_events set attempts = attempts + 1 where id = $1`, eventID(1))
	}
	if got := operations(eventID(1)); len(got) != deadletters.MaxRecords || got[0] != "change" {
		t.Errorf("%d records, the first is %s", len(got), got[0])
	}
}

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
	need.OK(t, pool.QueryRow(t.Context(), "explain (analyze, buffers, format json) "+sql, args...).Scan(&text))
	var out []struct{ Plan plan }
	need.OK(t, json.Unmarshal([]byte(text), &out))
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
		list := func(f deadletters.Filter, before int64) (string, []any) {
			return r.where("dead_letters", f, before, deadletters.DefaultLimit+1, false)
		}
		one := fingerprintOf(t, pool)
		for name, c := range map[string]struct {
			sql   func() (string, []any)
			rows  float64 // the most that it reads
			pages int64
		}{
			"groups":                  {func() (string, []any) { return r.groups(deadletters.Filter{}) }, 100_000 + 300, 110_000},
			"groups of a tenant":      {func() (string, []any) { return r.groups(deadletters.Filter{Tenant: eventID(1)}) }, 200_300, 110_000},
			"one group":               {func() (string, []any) { return r.groups(deadletters.Filter{Group: one}) }, 15_000, 20_000},
			"large groups":            {func() (string, []any) { return r.where("sampled", deadletters.Filter{}, []string{one}, r.pages) }, 60_000, 5_000},
			"tenants":                 {func() (string, []any) { return r.counts(deadletters.Filter{}, deadletters.ByTenant) }, deadletters.CountCap + 300, 60_000},
			"a group's tenants":       {func() (string, []any) { return r.counts(deadletters.Filter{Group: one}, deadletters.ByTenant) }, 15_000, 20_000},
			"tenants of a type":       {func() (string, []any) { return r.counts(deadletters.Filter{Type: "Type"}, deadletters.ByTenant) }, 200_000, 110_000},
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
			"an event's copies": {func() (string, []any) {
				return r.sql("copies"), []any{"c4ca4238-a0b9-2382-0dcc-509a6f75849b", "shop", nil, strings.Split("abcdefghijklmnopqrst", "")}
			}, 40, 100},
			"a dedupe key": {func() (string, []any) { return r.sql("dedupe"), []any{"key-77", "shop", nil} }, 100, 200},
		} {
			if statistics == "missing" && name != "an event's journal" && name != "an event's copies" { // then it may read every open dead letter, and no more
				c.rows, c.pages = 200_000, 210_000
			}
			sql, args := c.sql()
			p, text := explain(t, pool, sql, args)
			t.Logf("%s, statistics %s: %.0f rows, %d pages", name, statistics, p.looked(), p.Hit+p.Read)
			if p.looked() > c.rows || p.Hit+p.Read > c.pages {
				t.Errorf("%s, statistics %s: it read %.0f rows and %d pages, want %.0f and %d at most:\n%s", name, statistics, p.looked(), p.Hit+p.Read, c.rows, c.pages, text)
			}
			need.That(t, name != "groups" && name != "tenants" || !p.has(func(p plan) bool { return strings.Contains(p.Node, "Seq Scan") && p.Table != "" }),
				"%s, statistics %s: it reads the table from end to end:\n%s", name, statistics, text)
		}
	}
}

// Of a large group the newest count, up to its part: then a count says that there may be more. A filter that looks at each one
// counts each one. Nothing is compiled for it.
func TestCountsAreCappedAndSaySo(t *testing.T) {
	if testing.Short() {
		t.Skip("it adds 50,002 dead letters")
	}
	t.Parallel()
	pool, r := outbox(t)
	for n, atLeast := range []bool{false, true} { // as many groups as are read, and one more
		pgtest.Exec(pool, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts)
			select gen_random_uuid(), 'shop', 'topic ' || n, 'permanent_failure', 20 from generate_series($1::integer, $2) as n`, n*deadletters.MaxGroups, deadletters.MaxGroups-1+n)
		got, err := r.CountBy(t.Context(), deadletters.Filter{}, deadletters.ByType)
		need.OK(t, err)
		need.That(t, len(got.Counts) == 1 && got.Counts[0].Count >= deadletters.MaxGroups && got.Counts[0].AtLeast == atLeast, "of %d groups: %+v, want at least: %t", deadletters.MaxGroups+n, got, atLeast)
	}
	pgtest.Exec(pool, `delete from outbox.outbox_dead_letters`)
	addDead(t, pool, "large", deadletters.CountCap/2+1)
	addDead(t, pool, "small", deadletters.CountCap/2-1)
	addDead(t, pool, "other", 2)
	for _, row := range []struct {
		f    deadletters.Filter
		want string
	}{
		{deadletters.Filter{}, "33334 true true 3"},
		{deadletters.Filter{Topic: "large"}, "25001 false false 1"},
		{deadletters.Filter{Group: groupOf(t, pool, "small")}, "24999 false false 1"},
		{deadletters.Filter{Reason: "permanent_failure"}, "50002 false false 3"},
	} {
		got, err := r.CountBy(t.Context(), row.f, deadletters.ByType)
		need.OK(t, err)
		need.That(t, len(got.Counts) == 2, "%+v", got)
		a, b := got.Counts[0], got.Counts[1]
		need.Want(t, row.want, fmt.Sprintf("%+v: ", row.f)+"%s, want %s", fmt.Sprint(a.Count+b.Count, a.AtLeast, b.AtLeast, a.Groups))
	}
	need.OK(t, r.read(t.Context(), "look", func(tx pgx.Tx) error {
		var jit string
		err := tx.QueryRow(t.Context(), "show jit").Scan(&jit)
		need.Want(t, "off", "jit is %s, want %s", jit)
		return err
	}))
}

func groupOf(t *testing.T, pool pgtest.DB, topic string) string {
	t.Helper()
	return pgtest.Value[string](pool, "select fingerprint from outbox.outbox_dead_letters where topic = $1 limit 1", topic)
}

func fingerprintOf(t *testing.T, pool pgtest.DB) (group string) {
	t.Helper()
	need.OK(t, pool.QueryRow(t.Context(), "select fingerprint from outbox.outbox_dead_letters order by id limit 1").Scan(&group))
	return group
}
