package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/outbox-operator/outbox-operator/hack/testing/golden"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// The configurations of the tests. Of type Line, the new one has a schema; of Order another rule; of Card a mask;
// of Odd a transformation that cannot be computed; topic refunds goes elsewhere, lost has no route any more, and gone
// is not served any more; and Free has no rule any more. The section sink is before them.
const (
	oldTry = `
  routes: [{to: '"/" + event.topic'}]
message:
  validation:
  - types: [Order, Free]
    rules: [{rule: payload.total >= 0, message: a total is not negative}]
`
	newTry = `
  routes:
  - topics: [refunds]
    to: '"/v2/refunds"'
  - topics: [orders, odd]
    to: '"/" + event.topic'
topics: [orders, refunds, odd, lost]
message:
  validation:
  - types: [Line]
    schema: {inline: '{"properties": {"lines": {"items": {"properties": {"price": {"type": "number"}}}}}}'}
  - types: [Order]
    rules: [{rule: payload.total > 0, message: an order has a total}]
  transform:
  - types: [Card]
    payload: mask(payload, ["card"])
  - types: [Odd]
    payload: '{"sum": payload.a + payload.b}'
`
)

// silent is a destination that must get no connection.
type silent struct {
	*httptest.Server
	heard atomic.Int64
}

func newSilent(t *testing.T) *silent {
	s := &silent{}
	s.Server = httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.heard.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// wantSilence fails the test if anybody connected.
func (s *silent) wantSilence(t *testing.T) {
	t.Helper()
	resp, err := http.Get(s.URL) // accepted after all others
	check(t, err)
	check(t, resp.Body.Close())
	need.Want(t, 1, "the destination had %d connections, want only the test's own", s.heard.Load())
}

// versions is every row of the outbox, where it is and who wrote it, and the sequences: a write changes it.
func (o *outbox) versions(t testing.TB) (all string) {
	t.Helper()
	for _, table := range []string{"outbox_events", "outbox_dead_letters", "outbox_workers", "outbox_migrations"} {
		var one string
		check(t, o.admin.QueryRow(t.Context(), `select md5(coalesce(string_agg(concat_ws(' ', ctid, xmin, xmax, e::text), ',' order by ctid), ''))
			from outbox.`+table+` as e`).Scan(&one))
		all += table + " " + one + "\n"
	}
	sequences := pgtest.Value[string](o.admin, `select string_agg(concat_ws(' ', sequencename, last_value), ',' order by sequencename) from pg_sequences where schemaname = 'outbox'`)
	return all + sequences
}

// reader is a login that may read what try reads, and no more.
func (o *outbox) reader(t testing.TB) string {
	t.Helper()
	role := o.producer // which may not read until now
	o.exec(t, "grant usage on schema outbox to "+role+"; grant select on outbox.outbox_events, outbox.outbox_migrations to "+role+"; grant execute on function outbox.outbox_sequences_behind to "+role)
	return role
}

// past adds delivered rows whose ids count up from the first.
func (o *outbox) past(t testing.TB, first, n int, namespace, topic, eventType, payload string) {
	t.Helper()
	pgtest.Exec(o.admin, `
		insert into outbox.outbox_events (id, created_at, namespace, topic, event_type, aggregate_id, headers, payload, attempts, lease, status)
		select ('01900000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, timestamptz '2026-01-01 00:00:00Z' + n * interval '1 second',
			$3, $4, $5, 'a' || n % 7, '{"correlation-id": "s3cr3t"}', $6::jsonb, 1, n, 'delivered'
		from generate_series($1::int, $1 + $2::int - 1) as n`, first, n, namespace, topic, eventType, payload)
}

// planted fills an outbox with 1,000 rows, of which 54 come out otherwise, and some around them that are not tried.
func planted(t *testing.T) *outbox {
	o := installed(t)
	const same = `{"total": 5, "card": "s3cr3t", "lines": [{"price": 1}]}`
	o.past(t, 1, 40, "shop", "orders", "Order", `{"total": 0}`) // too old
	o.past(t, 100, 946, "shop", "orders", "Order", same)
	o.past(t, 1100, 13, "shop", "orders", "Line", `{"lines": [{"price": 1}, {"price": "s3cr3t"}, {"price": "s3cr3t"}]}`)
	o.past(t, 1200, 7, "shop", "orders", "Order", `{"total": 0}`)
	o.past(t, 1300, 11, "shop", "refunds", "Refund", same)
	o.past(t, 1400, 9, "shop", "orders", "Card", same)
	o.past(t, 1500, 5, "shop", "odd", "Odd", `{"a": "s3cr3t"}`)
	o.past(t, 1600, 4, "shop", "lost", "Refund", same)
	o.past(t, 1700, 3, "shop", "gone", "Refund", same)
	o.past(t, 1800, 2, "shop", "orders", "Free", `{"total": -5}`)
	o.past(t, 1900, 60, "bank", "orders", "Order", `{"total": 0}`)
	// Any status is tried.
	o.exec(t, `update outbox.outbox_events set status = 'pending', attempts = 0 where id < '01900000-0000-7000-8000-000000000120' and seq > 40`)
	o.exec(t, `update outbox.outbox_events set status = 'processing', locked_by = id, locked_until = now() where id between '01900000-0000-7000-8000-000000000120' and '01900000-0000-7000-8000-000000000129'`)
	o.exec(t, `update outbox.outbox_events set status = 'dead', dead_reason = 'schema_validation_failed' where event_type = 'Free'`)
	o.exec(t, `update outbox.outbox_events set status = 'dead', dead_reason = 'max_retries_exceeded' where id between '01900000-0000-7000-8000-000000000130' and '01900000-0000-7000-8000-000000000139'`)
	return o
}

// Of 1,000 rows, exactly the planted differences are named, by groups, and no value of theirs. Nothing is sent,
// nothing is written, and a login that only reads is enough. CONTRACT: C-72, C-73
func TestTryNamesExactlyThePlantedDifferences(t *testing.T) {
	t.Parallel()
	o, destination := planted(t), newSilent(t)
	role := o.reader(t)
	to := dispatching("\n  http: {url: '" + destination.URL + "'}")
	old, changed := o.file(t, role, to+oldTry), o.file(t, role, to+newTry)
	before := o.versions(t)

	said := run(t, "", "try", "-f", changed, "--against", old, "--last", "1000", "--output", "json")
	said.ended(t, 3, "54 of 1000 events come out otherwise")
	golden.Check(t, "try.golden", "json", strings.NewReplacer(destination.URL, "http://SERVER", old, "OLD.yaml").Replace(said.out))

	var asJSON, asYAML any
	check(t, json.Unmarshal([]byte(said.out), &asJSON))
	other := run(t, "", "try", "-f", changed, "--against", old, "--output", "yaml")
	other.ended(t, 3)
	check(t, yaml.Unmarshal([]byte(other.out), &asYAML))
	need.That(t, reflect.DeepEqual(asJSON, asYAML), "YAML says otherwise than JSON:\n%s", other.out)
	run(t, "", "try", "-f", changed, "--against", old).ended(t, 3, "1000 events of namespace shop, created from 2026-01-01T00:01:40Z to 2026-01-01T00:30:01Z",
		"same      946\n", "dead      20\n", "moved     11\n",
		"dead      13     orders   message.validation[0].schema, at /lines/*/price: #/properties/lines/items/properties/price/type (number, not string)\n"+
			"                            event 01900000-0000-7000-8000-000000001112\n",
		"paused    5      odd      message.transform[1].payload cannot be computed: line 1, column 28: it reads a key that is not there; ",
		"moved     11     refunds  "+destination.URL+"/refunds → "+destination.URL+"/v2/refunds\n")

	need.Want(t, before, "the database changed:\n%s\nwas\n%s", o.versions(t))
	destination.wantSilence(t)
}

// Without another configuration, the status of the rows says what was made of them.
func TestTryComparesWithTheStatus(t *testing.T) {
	t.Parallel()
	o, destination := planted(t), newSilent(t)
	role := o.reader(t)
	to := dispatching("\n  http: {url: '" + destination.URL + "'}")
	counts := func(more string, args ...string) map[string]int {
		said := run(t, "", append([]string{"try", "-f", o.file(t, role, to+more), "-o", "json"}, args...)...)
		var report struct {
			Rows     int
			Outcomes map[string]int
			Groups   []struct{ Topic string }
		}
		check(t, json.Unmarshal([]byte(said.out), &report))
		for outcome, n := range report.Outcomes {
			if n == 0 {
				delete(report.Outcomes, outcome)
			}
		}
		if wantCode := map[bool]int{true: 0, false: 3}[len(report.Groups) == 0]; said.code != wantCode {
			t.Errorf("exit code %d, want %d", said.code, wantCode)
		}
		return report.Outcomes
	}
	// The newest 1,000 rows of the new configuration's topics are 997 of those that were planted, and 3 before them.
	for name, c := range map[string]struct {
		more string
		args []string
		want map[string]int
	}{
		"as it was":      {oldTry, nil, map[string]int{"same": 1000}},
		"the change":     {newTry, nil, map[string]int{"same": 946 + 11 + 9, "dead": 20 + 3, "paused": 5, "failed": 4, "sent": 2}},
		"one topic":      {newTry, []string{"--topic", "odd"}, map[string]int{"paused": 5}},
		"two topics":     {newTry, []string{"--topic", "odd,gone"}, map[string]int{"paused": 5, "notTaken": 3}},
		"the newest two": {newTry, []string{"--last", "2"}, map[string]int{"sent": 2}},
	} {
		if got := counts(c.more, c.args...); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
	destination.wantSilence(t)
}

// A try that fails reports the remedy, and never "no difference".
func TestTryReportsWhyItFailed(t *testing.T) {
	t.Parallel()
	o := installed(t)
	role := o.reader(t)
	o.past(t, 1, 3, "shop", "orders", "Order", `{"total": 1}`)
	to := dispatching("{http: {url: 'http://127.0.0.1:1/'}}")
	good := o.file(t, role, to)
	bad := o.file(t, role, to+"message: {validation: [{rules: [{rule: payload.total >, message: m}]}]}\n")
	registry := o.file(t, role, to+"message: {schemaRegistry: {url: 'http://127.0.0.1:1'}, validation: [{schema: {registry: {subject: orders}}}]}\n")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-f", good}, 0, "same  3\n"},
		{[]string{"-f", bad}, 78, "message.validation[0].rules[0].rule: line 1, column 16"},
		{[]string{"-f", good, "--against", bad}, 78, bad + ": message.validation[0].rules[0].rule: line 1, column 16"},
		{[]string{"-f", good, "--against", o.file(t, role, strings.Replace(to, "namespace: shop", "namespace: bank", 1))}, 78, `is for namespace "bank"`},
		{[]string{"-f", good, "--against", good + ".none"}, 78, "no such file"},
		{[]string{}, 1, "no configuration; name its file with -f"},
		{[]string{"-f", good, "--topic", "none"}, 1, `no row of namespace "shop" was found to try (3 rows were looked at); correct namespace, --topic and --since`},
		{[]string{"-f", good, "--since", "1h"}, 1, "no row of namespace"},
		{[]string{"-f", good, "--last", "0"}, 1, "--last is 0; set it to 1 to 100000"},
		{[]string{"-f", good, "--since", "-1h"}, 1, "--since is -1h0m0s; set it to"},
		{[]string{"-f", good, "-o", "xml"}, 1, `--output is "xml"; set it to table, json or yaml`},
		{[]string{"-f", registry}, 1, "event 01900000-0000-7000-8000-000000000003 cannot be tried: message.validation[0].schema.registry: "},
	} {
		t.Run(fmt.Sprint(c.args), func(t *testing.T) {
			run(t, "", append([]string{"try"}, c.args...)...).ended(t, c.code, c.want)
		})
	}
	o.exec(t, "revoke select on outbox.outbox_events from "+role)
	run(t, "", "try", "-f", good).ended(t, 1, "permission denied for table outbox_events")
	o.exec(t, "drop schema outbox cascade")
	run(t, "", "try", "-f", good).ended(t, 1, `Schema "outbox" holds no outbox; run "dispatcher migrate up".`)
}
