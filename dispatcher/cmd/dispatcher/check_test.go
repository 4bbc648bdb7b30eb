package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	hacknats "github.com/outbox-operator/outbox-operator/hack/servers/nats"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/objects"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// check reports the isolation level of transactions: the login's default, where the dispatcher cannot set another, with the
// remedy.
func TestCheckReportsTheIsolationLevel(t *testing.T) {
	t.Parallel()
	srv := pgtest.Server(t)
	o := newOutbox(t, srv.DSN("postgres")).migrated(t)
	file := o.file(t, o.dispatcher, dispatching("{log: {}}"))
	o.exec(t, "alter role "+o.dispatcher+" set default_transaction_isolation = 'serializable'")
	run(t, "", "check", "-f", file).ok(t, "ok   isolation: read committed, set by the dispatcher: the default of "+o.dispatcher+" is serializable\n")

	o.exec(t, "alter database postgres set default_transaction_isolation = 'serializable'")
	check(t, objects.Secret(o.dir, secretOf(o.dispatcher), "dsn", pgtest.Bouncer(t, srv).DSN("postgres")))
	run(t, "", "check", "-f", file).ok(t, "WARN isolation: transactions of ", " run at serializable behind the connection pooler", "run: alter role ")
}

// A reachable destination lacks the configured place, or that of one of the file's topics: check reports it with the remedy, and
// no event spends an attempt. The tests of each sink have its own errors.
//
// CONTRACT: C-32
func TestCheckFailsWithoutAPlace(t *testing.T) {
	t.Parallel()
	o := installed(t)
	o.enqueue(t, 1)
	s, err := hacknats.Start(t.Context(), hacknats.Options{})
	started(t, s, err, nil)
	makeStream(t, s.URL(), "orders")
	sink := fmt.Sprintf("{nats: {servers: ['%s']}", s.URL())
	file := o.file(t, o.dispatcher, dispatching(strings.Replace(sink, "}", ", subject: typo}", 1)+"}"))
	run(t, "", "check", "-f", file).ended(t, 1, "FAIL sink: ", "subject typo at ", "dispatcher: 1 of 5 checks failed")
	run(t, "", "once", "-f", file).ended(t, 1, "subject typo at ")
	need.Want(t, 1, "the event spent an attempt", o.count(t, "status = 'pending' and attempts = 0"))

	run(t, "", "check", "-f", o.file(t, o.dispatcher, dispatching(sink+"}")+"topics: [orders, payments]\n")).ended(t, 1,
		"FAIL sink: subject payments at ", "create one that captures it", "ok   sink: the destination responds",
		"ok   sink: 1 of 2 destinations of the file are there: orders\n", "dispatcher: 1 of 7 checks failed")
	routed := dispatching(sink + `, routes: [{topics: [returns], to: '"orders"'}, {to: 'event.type == "x" ? "x" : "payments"'}]}`)
	run(t, "", "check", "-f", o.file(t, o.dispatcher, routed)).ok(t, "ok   sink: 1 of 1 destinations of the file are there: orders\n")
}

// makeStream makes a stream of NATS that takes the subject of its name.
func makeStream(t *testing.T, url, name string) {
	t.Helper()
	conn, err := nats.Connect(url)
	check(t, err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	check(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}})
	check(t, err)
}

// A destination that takes smaller messages than enqueue is warned of.
func TestCheckWarnsOfSmallMessages(t *testing.T) {
	t.Parallel()
	o := installed(t)
	for limit, want := range map[string]string{"1MB": "WARN sink: it takes messages of 1048576 bytes (the server's max_payload)", "2MB": ""} {
		s, err := hacknats.Start(t.Context(), hacknats.Options{Settings: "max_payload: " + limit + "\n"})
		started(t, s, err, nil)
		makeStream(t, s.URL(), "orders")
		file := o.file(t, o.dispatcher, dispatching(fmt.Sprintf("{nats: {servers: ['%s'], subject: orders}}", s.URL())))
		result := run(t, "", "check", "-f", file)
		result.ok(t, "ok   sink: ", want)
		if want == "" && strings.Contains(result.out, "WARN") {
			t.Errorf("a limit of 2 MB is large enough, and check warns:\n%s", result.out)
		}
	}
}

// started is a server of this test, which ends with it.
func started(t *testing.T, s interface{ Stop(context.Context) error }, err, missing error) {
	t.Helper()
	need.Server(t, err, missing)
	t.Cleanup(func() { check(t, s.Stop(context.Background())) })
}

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
	need.That(t, well.OK && well.Dispatcher == "orders" && well.Namespace == "shop" && len(well.Checks) == 11, "an empty outbox is %+v", well)
	for _, c := range well.Checks {
		need.That(t, c.OK && c.Remedy == "" && (c.Value == nil) == (c.Name == "success" || c.Name == "journal"), "of an empty outbox it says %+v", c)
	}
	run(t, "", "check", "-f", file, "--data").ok(t, "ok  lag        no event waits\n", "ok  success    no process of the dispatcher that runs has tried a delivery in the last 5m\n")

	o.exec(t, `select outbox.outbox_journal_set(true)`)
	o.enqueue(t, 7)
	o.exec(t, `update outbox.outbox_events set next_attempt_at = now() - interval '2 hours', created_at = now() - interval '5 hours'`)
	o.exec(t, `update outbox.outbox_events set next_attempt_at = now() + interval '1 hour', attempts = 1, last_error = '500' where seq = 1`)
	o.exec(t, `update outbox.outbox_events set next_attempt_at = now() + interval '1 hour', created_at = now() + interval '1 hour' where seq = 2`)
	o.exec(t, `update outbox.outbox_events set topic = 'refunds', status = 'processing', locked_by = gen_random_uuid(), locked_until = now() - interval '1 hour' where seq <= 4 and next_attempt_at < now()`)
	o.exec(t, `insert into outbox.outbox_dead_letters (event_id, namespace, topic, reason, attempts) values (gen_random_uuid(), 'shop', 'orders', 'poison_message', 1)`)
	o.exec(t, `insert into outbox.outbox_workers (worker, dispatcher, namespace, topics, delivered_5m, failed_5m) values (gen_random_uuid(), 'orders', 'shop', '{refunds}', 80, 20)`)

	o.exec(t, `create function outbox.veto() returns trigger language plpgsql as $$ begin raise 'not this one'; end $$; create trigger veto before update on outbox.outbox_events for each row when (new.seq = 5) execute function outbox.veto()`)
	odd := pgtest.Value[string](o.admin, "select id::text from outbox.outbox_events where seq = 5")

	got := read(3)
	want := map[string]struct {
		value  float64
		ok     bool
		says   string
		remedy string
	}{
		"lag":       {18000, false, `an event of topic "orders" has waited for 5h0m`, "kubectl outbox status"},
		"retries":   {2, true, "waiting for a retry after a failure: 2, of 5 that wait", ""},
		"success":   {0.8, false, "80 of 100 attempts delivered their event in the last 5m", "last_error"},
		"dead":      {1, false, "became dead in the last 1h: 1", "dispatcher dead groups"},
		"unserved":  {3, false, `due in topics that no dispatcher serves: 3, of topic "orders" of namespace "shop"`, "Run a dispatcher"},
		"size":      {pgtest.Value[float64](o.admin, "select pg_total_relation_size('outbox.outbox_events')::float8"), true, "the table of events and its indexes take 0.00 GB", ""},
		"journal":   {13, false, "of events that changed in the last 24h: 13", "dispatcher verify"},
		"adoptions": {0, true, "rows of adopted tables without an event", ""},
		"abandoned": {2, false, `leased to workers that have ended, and not taken over: 2, of topic "refunds" of namespace "shop"`, "Start or resume"},
		"claims":    {1, false, "refuses to lease: 1; event " + odd + ` of topic "orders": `, "ClaimsRefused"},
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
	need.That(t, !got.OK && len(want) == 0, "ok is %t, want false; missing checks %v", got.OK, want)
	run(t, "", "check", "-f", file, "--data").ended(t, 3, "FAIL  unserved   due in topics", "                 Run a dispatcher for", "ok    retries    waiting", "dispatcher: 8 of 11 checks of the data failed")
	run(t, "", "check", "-f", file, "--output", "json").ended(t, 1, "--output is for --data")
	run(t, "", "check", "-f", file, "--data", "--output", "xml").ended(t, 1, `--output is "xml"; set it to table, json or yaml`)
	run(t, "", "check", "-f", o.file(t, o.dispatcher, ""), "--data").ended(t, 78, "has no OutboxDispatcher")
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
		need.That(t, strings.Contains(text, want+"\n"), "/metrics lacks %s", want)
	}
	if result := run(t, "", "check", "-f", o.file(t, o.dispatcher, dispatching("{log: {}}")), "--data"); !strings.Contains(result.out, "3 of 3 attempts delivered their event in the last 5m") {
		t.Errorf("check --data says:\n%s", result.out)
	}
}

// A fleet whose pods come and go while events flow, as a scaler lets them: a step down spends no attempt and repeats no
// event, and with order per key no event overtakes an earlier one of its key.
//
// CONTRACT: C-30, C-50, C-107
func TestStepsOfAScaler(t *testing.T) {
	for ordering, steps := range map[string]int{"None": 100, "Key": 200} {
		t.Run(ordering, func(t *testing.T) {
			t.Parallel()
			if testing.Short() {
				steps = 10
			}
			takeSteps(t, ordering, steps)
		})
	}
}

const fleet, keysOfSteps, eventsOfAStep = 3, 40, 300

func takeSteps(t *testing.T, ordering string, steps int) {
	o := installed(t)
	var mu sync.Mutex
	times, last, inversions, arrivals := map[string]int{}, map[string]int64{}, 0, 0
	consumer := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		time.Sleep(10 * time.Millisecond) // so that a stop meets deliveries in flight
		mu.Lock()
		defer mu.Unlock()
		arrivals++
		times[r.Header.Get("ce-id")]++
		key, sequence := r.Header.Get("ce-partitionkey"), int64(0)
		if n, err := strconv.ParseInt(r.Header.Get("ce-sequence"), 10, 64); err == nil {
			sequence = n
		}
		if sequence <= last[key] {
			inversions++
		}
		last[key] = sequence
	}))
	defer consumer.Close()
	file := o.file(t, o.dispatcher, dispatching("{http: {url: '"+consumer.URL+"'}}")+"delivery: {ordering: "+ordering+", batchSize: 50, concurrency: 4}\n")

	produced := 0
	produce := func() {
		o.exec(t, fmt.Sprintf("select outbox.enqueue('shop', 'orders', '{}', p_partition_key => 'k' || n %% %d) from generate_series(1, %d) n", keysOfSteps, eventsOfAStep))
		produced += eventsOfAStep
	}
	var running []*process
	for range fleet {
		running = append(running, start(t, file))
	}
	arrived := func() int { mu.Lock(); defer mu.Unlock(); return arrivals }
	produce()
	busy := 0
	for range steps {
		produce()
		before := arrived()
		await(t, "events flow", func() bool { return arrived() > before })
		if arrived() < produced {
			busy++
		}
		if code := running[0].stop(t); code != 0 {
			t.Fatalf("a step down ended with exit code %d", code)
		}
		running = append(running[1:], start(t, file))
	}
	await(t, "all is delivered", func() bool { return o.count(t, "status = 'delivered'") == produced })
	if n := o.count(t, "attempts <> 1"); n != 0 {
		t.Errorf("%d of %d events have spent more than their one attempt", n, produced)
	}
	need.That(t, busy >= steps*9/10, "only %d of %d steps met events that wait", busy, steps)
	mu.Lock()
	defer mu.Unlock()
	need.That(t, len(times) == produced && arrivals == produced, "%d arrivals of %d events, want each of %d once", arrivals, len(times), produced)
	if ordering == "Key" && (inversions != 0 || len(last) != keysOfSteps) {
		t.Errorf("%d inversions in %d keys", inversions, len(last))
	}
	t.Logf("%d steps down, %d of them while events waited, %d events, %d of another order than that of the producer", steps, busy, produced, inversions)
}

// Types that get a verified consumer reach a running process. Events that wait for one are counted, and leave destination
// and process healthy. CONTRACT: C-82
func TestVerifiedTypesFileGatesEvents(t *testing.T) {
	t.Parallel()
	o := installed(t)
	consumer := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer consumer.Close()
	m := mounted(t.TempDir())
	say := func(types string) { m.set(t, map[string]string{"types": types}) }
	args := []string{"-f", o.file(t, o.dispatcher, dispatching("{http: {url: '"+consumer.URL+"'}}")), "--verified-types-file", m.file("types")}
	checked := func() output { return run(t, "", append([]string{"check"}, args...)...) }
	o.enqueue(t, 20)
	checked().ended(t, 1, "FAIL verified types: --verified-types-file: ")
	p := launch(t, command(t, append([]string{"run", "--listen", "127.0.0.1:0"}, args...)...))
	p.ready(t)
	gated := func() bool {
		s := p.status(t)
		return len(s.Gated) == 1 && s.GatedTopics == 1 && s.Gated[0].Topic == "orders" && s.Gated[0].Waiting == 20 && s.Sink.State == "Reachable" && s.AllTopicsPaused
	}
	await(t, "without a file nothing is delivered", func() bool { return gated() && len(p.status(t).FileProblems) == 1 })
	say("other.type\n")
	await(t, "nor with one that lists other types", func() bool { return gated() && p.status(t).FileProblems == nil })
	checked().ended(t, 0, "ok   verified types: 1 are listed")
	if n := o.count(t, "status = 'pending' and attempts = 0"); n < 19 { // one may be looked at
		t.Errorf("%d of 20 wait without an attempt", n)
	}
	p.ready(t)
	say("other.type\n*")
	await(t, "all is delivered", func() bool { return o.count(t, "status = 'delivered' and attempts = 1") == 20 })
	await(t, "no topic is paused", func() bool { return p.status(t).Gated == nil })
	need.Want(t, 0, "it ended with %d", p.stop(t))
}

// check and the start compile routes, validations and transformations, and report an error with line and column.
// CONTRACT: C-72, C-101
func TestPipelineIsChecked(t *testing.T) {
	t.Parallel()
	o := installed(t)
	good := dispatching(`{http: {url: 'http://127.0.0.1:1/'}, routes: [{topics: [orders], to: '"/" + event.type'}]}`) + `
message:
  validation: [{types: [Placed], schema: {inline: '{"type": "object"}'}, rules: [{rule: payload.total > 0, message: positive}]}]
  transform: [{payload: 'without(payload, ["card"])'}]
`
	run(t, "", "check", "-f", o.file(t, o.dispatcher, good)).ended(t, 1, "ok   config: ",
		`ok   sink.routes[0]: orders: "/" + event.type`+"\n",
		"ok   message.validation[0]: Placed: an inline schema; payload.total > 0\n",
		`ok   message.transform[0]: every type: without(payload, ["card"])`+"\n",
		"FAIL sink: ")
	bad := o.file(t, o.dispatcher, dispatching("{log: {}}")+`
message: {validation: [{schema: {inline: '{"type": "objekt"}'}, rules: [{rule: payload.total >, message: positive}]}]}
`)
	refused := run(t, "", "check", "-f", bad)
	need.That(t, !strings.Contains(refused.out, "ok   config"), "a file that does not compile is called valid:\n%s", refused.out)
	refused.ended(t, 78, "FAIL config: message.validation[0].schema.inline: it is not a JSON Schema: ",
		"FAIL config: message.validation[0].rules[0].rule: line 1, column 16: Syntax error")
	run(t, "", "once", "-f", bad).ended(t, 78, "message.validation[0].schema.inline: it is not a JSON Schema: ")
	run(t, "", "run", "-f", bad).ended(t, 78, "message.validation[0].rules[0].rule: line 1, column 16: Syntax error")
	run(t, "", "check", "-f", o.file(t, o.dispatcher, dispatching("{log: {}, routes: [{to: event.topic}]}"))).ended(t, 78, "FAIL config: ")
}

// Events of a name that no dispatcher serves are listed, moved or discarded, with a dry run and a reason. Dispatchers of other
// names are not red for them, and the journal reports nothing.
//
// CONTRACT: C-95
func TestUnservedEventsAreMovedOrDiscarded(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Empty(t))
	owner := o.file(t, o.owner, "journal: {mode: Enabled}\n")
	run(t, "", "migrate", "up", "-f", owner, "--grant-to-login-of", o.file(t, o.dispatcher, "")).ok(t)
	o.exec(t, `select outbox.enqueue('shpo', 'orders', jsonb_build_object('n', n), p_aggregate_id => 'a', p_dedupe_key => 'key-' || n) from generate_series(1, 3) as n;
		select outbox.enqueue('shop', 'orders', '{"n": 3}', p_dedupe_key => 'key-3'); select outbox.enqueue('old', 'gone', '{}');
		update outbox.outbox_events set next_attempt_at = now() - interval '1 hour'`)
	name := []string{"-f", owner, "--namespace", "shpo", "--topic", "orders", "--reason", "misspelt"}
	unserved := func(what string, more ...string) output {
		return run(t, "", append(append([]string{"unserved", what}, name...), more...)...)
	}

	// A worker that is not in outbox_workers holds one.
	o.exec(t, `update outbox.outbox_events set status = 'processing', attempts = 1, lease = nextval('outbox.outbox_leases'), locked_by = '6ba7b810-9dad-11d1-80b4-00c04fd430c8', locked_until = now() where payload ->> 'n' = '1'`)
	if list := run(t, "", "unserved", "list", "-f", owner); strings.Contains(list.out, "shpo") {
		t.Errorf("a name of which a worker holds an event is listed:\n%s", list.out)
	}
	unserved("discard").ended(t, 1, "is served by worker 6ba7b810-9dad-11d1-80b4-00c04fd430c8")
	o.exec(t, `update outbox.outbox_events set status = 'pending', attempts = 0, locked_by = null, locked_until = null where payload ->> 'n' = '1'`)

	run(t, "", "unserved", "list", "-f", owner).ok(t, "NAMESPACE  TOPIC   PENDING\nold        gone    1\nshop       orders  1\nshpo       orders  3\n")
	check := run(t, "", "check", "--data", "-f", o.file(t, o.dispatcher, dispatching("{log: {}}")+"topics: [payments]\n"))
	check.ended(t, 3, "FAIL  unserved", `"orders" of namespace "shop"`)
	check = run(t, "", "check", "--data", "-f", o.file(t, o.dispatcher, "name: bank\nnamespace: bank\nsink: {log: {}}\n"))
	check.ok(t, "ok  unserved   due in topics that no dispatcher serves: 5")

	unserved("move", "--to-namespace", "shop", "--dry-run").ok(t, `2 events of topic "orders" of namespace "shpo" would be moved; nothing was changed`, "1 have a dedupe key that is there already")
	need.Want(t, 3, "%d of 3 events are there after a dry run", o.count(t, "namespace = 'shpo'"))
	unserved("move", "--to-namespace", "shop").ok(t, `2 events of topic "orders" of namespace "shpo" moved`, "1 have a dedupe key")
	if got := o.text(t, `select string_agg(concat_ws(' ', payload ->> 'n', seq, key_hash = outbox.outbox_key_hash('shop', 'orders', null, 'a'), last_error like 'moved from topic orders of namespace shpo by %: misspelt'), ', ' order by seq)
		from outbox.outbox_events where namespace = 'shop' and aggregate_id is not null`); got != "1 6 t t, 2 7 t t" {
		t.Errorf("moved events: %s", got)
	}
	unserved("discard").ok(t, `1 events of topic "orders" of namespace "shpo" discarded`)
	need.Want(t, "discarded misspelt "+o.owner, "the dead letter: %s", o.text(t, `select concat_ws(' ', resolution, resolution_reason, resolved_by) from outbox.outbox_dead_letters`))
	run(t, "", "verify", "-f", owner).ok(t)
	o.exec(t, `select set_config('outbox.removal', 'retention', true); delete from outbox.outbox_events where status = 'dead'`)
	run(t, "", "verify", "-f", owner).ok(t) // its dead letter was discarded, so retention may remove it

	o.exec(t, `insert into outbox.outbox_workers (worker, dispatcher, namespace, topics, seen_at) values (gen_random_uuid(), 'other', 'old', '{}', now())`)
	run(t, "", "unserved", "discard", "-f", owner, "--namespace", "old", "--topic", "gone", "--reason", "x").ended(t, 1, `is served by dispatcher other`)
	run(t, "", "unserved", "discard", "-f", owner, "--namespace", "old", "--topic", "gone").ended(t, 1, "no reason")
	unserved("move").ended(t, 1, "the new name is the old one")

	o.exec(t, `insert into outbox.outbox_workers (worker, dispatcher, namespace, topics, seen_at) values (gen_random_uuid(), 'other', 'many', '{}', now());
		select outbox.enqueue('many', 'topic-' || n, '{}') from generate_series(1, 1001) as n; select outbox.enqueue('zoo', 'lost', '{}')`)
	run(t, "", "unserved", "list", "-f", owner).ok(t, "zoo        lost    1\n") // behind more names than a list has
}

// The journal settings of the file are applied; without any the journal stays as it is.
// REQUIREMENT: STORAGE-49
func TestMigrateSetsTheJournal(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Empty(t))
	up := func(more string) output { return run(t, "", "migrate", "up", "-f", o.file(t, o.owner, more)) }
	up("journal: {mode: Enabled, retention: 720h}\n").ok(t, "the journal of schema outbox is on; records are kept for 720h")
	if again := up(""); strings.Contains(again.out, "journal") {
		t.Errorf("without journal in the file:\n%s", again.out)
	}
	is := pgtest.Value[string](o.admin, `select enabled || ' ' || retention from outbox.outbox_journal_settings`)
	need.Want(t, "true 720:00:00", "the journal is %s", is)
	up("journal: {mode: Disabled}\n").ok(t, "the journal of schema outbox is off; records are kept for 168h")
	up("journal: {retention: 1h}\n").ended(t, 78, "spec.journal.mode: Required value")
	run(t, "", "migrate", "up", "-f", o.file(t, o.dispatcher, "journal: {mode: Enabled}\n")).ended(t, 1, "log in as the owner")
}

// verify, with a dispatcher's login, finds no difference, and then names a row that was changed past the journal. An
// event's history has its records.
//
// CONTRACT: C-61
// REQUIREMENT: STORAGE-71
func TestVerifyNamesARowThatDiffers(t *testing.T) {
	t.Parallel()
	o := installed(t)
	file := o.file(t, o.dispatcher, dispatching("{log: {}}"))
	run(t, "", "verify", "-f", file).ended(t, 1, "the journal is off", "set journal.mode to Enabled, and run `dispatcher migrate up`")
	run(t, "", "migrate", "up", "-f", o.file(t, o.owner, "journal: {mode: Enabled}\n")).ok(t)
	o.enqueue(t, 2)
	run(t, "", "once", "-f", file, "-n", "10").ok(t, "delivered 2, failed 0")
	run(t, "", "verify", "-f", file).ok(t, "6 records of 2 events", ": no difference\n")

	id := pgtest.Value[string](o.admin, `select id::text from outbox.outbox_events order by seq limit 1`)
	run(t, "", "events", "show", "-f", file, id).ok(t, "journal", "insert: none -> pending, attempts 0, token 0, login "+o.producer,
		"claim: pending -> processing, attempts 1, token 1, worker ", "ack: processing -> delivered", ", login "+o.dispatcher+", transaction ", ", LSN ")
	tx, err := o.admin.Begin(t.Context())
	check(t, err)
	_, err = tx.Exec(t.Context(), `set local session_replication_role = replica`)
	check(t, err)
	_, err = tx.Exec(t.Context(), `update outbox.outbox_events set status = 'pending' where id = $1`, id)
	check(t, err)
	check(t, tx.Commit(t.Context()))
	run(t, "", "verify", "-f", file).ended(t, 3, "1 differences", "StateDiffers", id,
		"the journal says delivered (attempts 1, lease 1), and the row is pending (attempts 1, lease 1)", "dispatcher: journal and rows differ in 1 places")
	found := run(t, "", "verify", "-f", file, "--since", "1h", "-o", "json")
	found.ended(t, 3)
	var report struct {
		Events, Records, Found int
		Differences            []map[string]any
	}
	if err := json.Unmarshal([]byte(found.out), &report); err != nil || report.Events != 2 || report.Records != 6 || report.Found != 1 ||
		report.Differences[0]["kind"] != "StateDiffers" || report.Differences[0]["event"] != id || report.Differences[0]["lsn"] == nil {
		t.Errorf("%+v, %v:\n%s", report, err, found.out)
	}
	o.exec(t, "delete from outbox.outbox_events")
	run(t, "", "events", "show", "-f", file, id).ok(t, "gone: its row was removed", "change: pending -> gone")
	run(t, "", "verify", "-f", file, "-o", "yaml").ended(t, 3, "kind: Illegal", "kind: Gap")
	run(t, "", "verify", "-f", file, "--limit", "0").ended(t, 1, "--limit is 0; set it to 1 to 100000")
	run(t, "", "verify", "-f", file, "-o", "csv").ended(t, 1, `--output is "csv"; set it to table, json or yaml`)
}
