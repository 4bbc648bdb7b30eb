package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// check --data reports on the data, as text and as JSON, with remedies; its exit code is 0 when all checks succeed.
//
// CONTRACT: C-95
// REQUIREMENT: STORAGE-67, STORAGE-68, STORAGE-69, STORAGE-70, STORAGE-72
func TestCheckDataFindsEachProblem(t *testing.T) {
	t.Parallel()
	o := installed(t)
	file := o.file(t, o.dispatcher, dispatching("{log: {}}"))
	type report struct {
		Dispatcher, Namespace string
		OK                    bool
		Checks                []struct {
			Name, Message, Remedy string
			OK, AtLeast           bool
			Value                 *float64
		}
	}
	read := func(code int) (r report) {
		t.Helper()
		result := run(t, "", "check", "-f", file, "--data", "--output", "json")
		result.ended(t, code)
		check(t, json.Unmarshal([]byte(result.out), &r))
		return r
	}

	well := read(0)
	if !well.OK || well.Dispatcher != "orders" || well.Namespace != "shop" || len(well.Checks) != 9 {
		t.Errorf("an empty outbox is %+v", well)
	}
	for _, c := range well.Checks {
		if !c.OK || c.Remedy != "" || (c.Value == nil) != (c.Name == "success" || c.Name == "journal") {
			t.Errorf("of an empty outbox it says %+v", c)
		}
	}
	run(t, "", "check", "-f", file, "--data").ok(t, "ok  lag        no event is due\n", "ok  success    no process of the dispatcher that runs has tried a delivery in the last 5m\n")

	o.exec(t, `select outbox.outbox_journal_set(true)`)
	o.enqueue(t, 7)
	o.exec(t, `update outbox.outbox_events set next_attempt_at = now() - interval '2 hours', created_at = now() - interval '5 hours'`)
	o.exec(t, `update outbox.outbox_events set next_attempt_at = now() + interval '1 hour', attempts = 1, last_error = '500' where seq = 1`)
	o.exec(t, `update outbox.outbox_events set next_attempt_at = now() + interval '1 hour', created_at = now() + interval '1 hour' where seq = 2`)
	o.exec(t, `update outbox.outbox_events set topic = 'refunds', status = 'processing', locked_by = gen_random_uuid(), locked_until = now() - interval '1 hour' where seq <= 4 and next_attempt_at < now()`)
	o.exec(t, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts) values (gen_random_uuid(), 'shop', 'orders', 'poison_message', 1)`)
	o.exec(t, `insert into outbox.outbox_workers (worker, dispatcher, namespace, topics, delivered_5m, failed_5m) values (gen_random_uuid(), 'orders', 'shop', '{refunds}', 80, 20)`)

	got := read(3)
	want := map[string]struct {
		value  float64
		ok     bool
		says   string
		remedy string
	}{
		"lag":       {7200, false, `an event of topic "orders" has been due for 2h0m`, "kubectl outbox status"},
		"retries":   {1, true, "waiting for a retry after a failure: 1, of 2 that are due later", ""},
		"success":   {0.8, false, "80 of 100 attempts delivered their event in the last 5m", "last_error"},
		"dead":      {1, false, "became dead in the last 1h: 1", "dispatcher dead groups"},
		"unserved":  {3, false, `due in topics that no dispatcher serves: 3, of topic "orders" of namespace "shop"`, "Run a dispatcher"},
		"size":      {pgtest.Value[float64](o.admin, "select pg_total_relation_size('outbox.outbox_events')::float8"), true, "the table of events and its indexes take 0.00 GB", ""},
		"journal":   {13, false, "of events that changed in the last 24h: 13", "dispatcher verify"},
		"abandoned": {2, false, `leased to workers that have ended, and not taken over: 2, of topic "refunds" of namespace "shop"`, "Start or resume"},
		"times":     {1, false, `of topic "orders" is created in the future, and due then: `, "set next_attempt_at = now()"},
	}
	for _, c := range got.Checks {
		w := want[c.Name]
		delete(want, c.Name)
		if c.OK != w.ok || c.Value == nil || *c.Value < w.value || *c.Value > w.value+60 || w.value < 100 && *c.Value != w.value ||
			!strings.Contains(c.Message, w.says) || (c.Remedy == "") != w.ok || !strings.Contains(c.Remedy, w.remedy) {
			t.Errorf("it says %+v, want %+v", c, w)
		}
	}
	if got.OK || len(want) > 0 {
		t.Errorf("ok is %t, want false; missing checks %v", got.OK, want)
	}
	run(t, "", "check", "-f", file, "--data").ended(t, 3, "FAIL  unserved   due in topics", "                 Run a dispatcher for", "ok    retries    waiting", "dispatcher: 7 of 9 checks of the data failed")
	run(t, "", "check", "-f", file, "--output", "json").ended(t, 1, "--output is for --data")
	run(t, "", "check", "-f", file, "--data", "--output", "xml").ended(t, 1, `--output is "xml"; set it to table, json or yaml`)
	run(t, "", "check", "-f", o.file(t, o.dispatcher, ""), "--data").ended(t, 78, "namespace is missing")
}

// A process stores the outcomes of its deliveries with its heartbeat; /status and /metrics show them, and rows of topics
// that no dispatcher serves.
//
// CONTRACT: C-95
// REQUIREMENT: STORAGE-69, STORAGE-70
func TestDataReachesStatusAndMetrics(t *testing.T) {
	t.Parallel()
	o := installed(t)
	o.enqueue(t, 3)
	run(t, `{"namespace": "shop", "topic": "refunds", "payload": 1}`, "enqueue", "-f", o.file(t, o.producer, "")).ok(t)
	o.exec(t, `update outbox.outbox_events set next_attempt_at = now() - interval '2 minutes' where topic = 'refunds'`)
	p := start(t, o.file(t, o.dispatcher, dispatching("{log: {}}")+"topics: [orders]\n"))
	await(t, "what it delivered is noted", func() bool {
		n := pgtest.Value[int](o.admin, "select coalesce(sum(delivered_5m + delivered_1h), 0) from outbox.outbox_workers")
		return n == 6
	})
	await(t, "/status shows it", func() bool {
		d := p.status(t).Data
		return d != nil && len(d.Windows) == 2 && d.Windows[0].Delivered == 3 && d.Windows[1].SuccessRate != nil && *d.Windows[1].SuccessRate == 1 &&
			d.Unserved == 1 && len(d.OrphanTopics) == 1 && d.OrphanTopics[0].Topic == "refunds"
	})
	_, text := p.get(t, "/metrics")
	for _, want := range []string{
		`outbox_orphaned_events{dispatcher="orders",kind="unserved",outbox_namespace="shop",sink="log"} 1`,
		`outbox_delivery_success_ratio{dispatcher="orders",outbox_namespace="shop",sink="log",window="5m"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	if result := run(t, "", "check", "-f", o.file(t, o.dispatcher, dispatching("{log: {}}")), "--data"); !strings.Contains(result.out, "3 of 3 attempts delivered their event in the last 5m") {
		t.Errorf("check --data says:\n%s", result.out)
	}
}
