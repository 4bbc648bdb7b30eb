package main

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/objects"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// From an empty database to delivered events, with commands alone. CONTRACT: C-11, C-73
// REQUIREMENT: OVERVIEW-18
func TestCommandsMigrateEnqueueAndDeliver(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Empty(t))
	owner, produces := o.file(t, o.owner, ""), o.file(t, o.producer, shop)
	yaml := dispatching("{log: {}}")
	delivers := o.file(t, o.dispatcher, yaml)

	run(t, "", "migrate", "status", "-f", owner).ok(t, "pending 0001_outbox", "schema outbox has version 0; this binary's is "+fmt.Sprint(migrations.Version))
	run(t, "", "check", "-f", delivers).ended(t, 1, "ok   config: ", "ok   database: ", "FAIL schema: Missing: ", "ok   sink: ", "dispatcher: 1 of 4 checks failed")
	run(t, "", "migrate", "up", "-f", delivers).ended(t, 1, "permission denied", "log in as the owner")
	run(t, "", "migrate", "up", "-f", owner).ok(t, "applied 0001_outbox\n", "schema outbox is at version ")
	again := run(t, "", "migrate", "up", "-f", owner, "--grant-to-login-of", delivers)
	again.ok(t, "granted a dispatcher's rights on schema outbox to "+o.dispatcher+"\n")
	left := filepath.Join(t.TempDir(), "termination-log") // by which the operator knows
	check(t, os.WriteFile(left, nil, 0o600))
	cmd := command(t, "migrate", "up", "-f", owner, "--grant-to-login-of", o.file(t, o.dispatcher, "replayLogin: {secretRef: {name: absent}}"))
	cmd.Env = append(cmd.Env, "TERMINATION_LOG="+left)
	finish(t, cmd, "").ok(t, "granted a dispatcher's rights", "replayLogin gets no rights: find the login", "create the file, or correct the path")
	if text, err := os.ReadFile(left); err != nil || !strings.HasPrefix(string(text), "replayLogin gets no rights: find the login") {
		t.Errorf("the termination message is %q, %v", text, err)
	}
	run(t, "", "migrate", "up", "-f", owner, "--grant-to-login-of", o.file(t, o.dispatcher, "replayLogin: {secretRef: {name: "+secretOf(o.dispatcher)+"}}")).ok(t,
		"granted a dispatcher's rights", "granted a replay login's rights on schema outbox to "+o.dispatcher)
	need.That(t, !strings.Contains(again.out, "applied"), "the second migration applied something:\n%s", again.out)
	run(t, "", "migrate", "status", "-f", delivers).ok(t, "applied 0001_outbox at 2", "schema outbox has version ")
	run(t, "", "migrate", "grants", "--role", o.producer, "--for", "producer").ok(t, `grant execute on function "outbox"."enqueue" to "`+o.producer+`";`, `alter role "`+o.producer+`" set outbox.require_data = on;`)
	run(t, "", "migrate", "grants", "--role", "nobody", "--apply", "-f", owner).ended(t, 1, "create the role, or correct its name")
	run(t, "", "check", "-f", delivers).ok(t, "ok   config: ", "ok   database: ", ", at "+o.dsn.Host+"\n", "ok   isolation: read committed\n", "ok   schema: outbox has version ", "ok   grants: "+o.dispatcher, "ok   sink: ")
	run(t, "", "check", "-f", o.file(t, o.dispatcher, yaml+"delivery: {wakeUp: Listen}\n")).ok(t, "ok   wake-up: ")

	run(t, "", "enqueue", "-f", produces, "--topic", "orders", "--payload", "{}").ended(t, 1, "migrate grants --for producer", "nothing was enqueued")
	grants := []string{"migrate", "grants", "--role", o.producer, "--for", "producer", "--apply", "-f", owner}
	run(t, "", grants...).ended(t, 1, "permission denied", "have a superuser run", "--require-data=false", "options=-c outbox.require_data=on")
	together := make(chan output)
	for range 8 {
		go func() { together <- run(t, "", append(slices.Clone(grants), "--require-data=false")...) }()
	}
	for range 8 {
		(<-together).ok(t, "granted a producer's rights")
	}
	o.exec(t, migrations.RequireData(o.producer)) // the command line has no other data
	group := strings.TrimSuffix(o.owner, "owner") + "group"
	o.exec(t, "create role "+group)
	pgtest.DropRole(t, o.admin.Pool, group)
	check(t, objects.Secret(o.dir, "root", "dsn", o.dsn.String()))
	run(t, "", "migrate", "grants", "--role", group, "--for", "producer", "--apply", "-f", o.file(t, "root", "")).ok(t,
		"granted a producer's rights", group+" cannot log in, and its members do not inherit outbox.require_data", `alter role "LOGIN" set`)
	enqueued := run(t, "", "enqueue", "-f", produces, "--topic", "orders", "--payload", `{"card": "`+secret+`"}`, "--event-type", "OrderPlaced",
		"--aggregate-type", "order", "--aggregate-id", "42", "--dedupe-key", "42", "--header", "correlation_id=c-1")
	enqueued.ok(t, " enqueued\n")
	id := strings.Fields(enqueued.out)[0]
	lines := `{"topic": "orders", "payload": 1, "dedupe_key": "42"}
		{"namespace": "shop", "topic": "refunds", "payload": {"a": null}, "headers": {"a": "b"}, "tenant_id": "0190b6c4-1f2e-7abc-8def-001122334455"}
		{"topic": "orders", "payload": "later", "delay": "1h"}`
	more := run(t, lines, "enqueue", "-f", produces)
	more.ok(t, id+" already enqueued\n")
	if n := o.count(t, "true"); n != 3 || strings.Count(more.out, "\n") != 3 {
		t.Errorf("%d rows, want 3; printed:\n%s", n, more.out)
	}
	run(t, `{"topic": "orders", "payload": 1} {"topic": "orders", "paylod": 1}`, "enqueue", "-f", produces).ended(t, 1, `event 2: json: unknown field "paylod"; nothing was enqueued`)
	run(t, `{"topic": "orders"}`, "enqueue", "-f", produces).ended(t, 1, "Payload is not JSON")
	run(t, "", "enqueue", "-f", produces, "--topic", "orders", "--payload", "{}", "--lock-key").ended(t, 1, "LockKey is set without a key")
	run(t, `{"topic": "orders", "payload": 1, "lock_key": true}`, "enqueue", "-f", produces).ended(t, 1, "LockKey is set without a key")
	need.Want(t, 3, "%d rows after refusals, want 3", o.count(t, "true"))

	first := run(t, "", "once", "-f", delivers)
	first.ok(t, "delivered 1, failed 0")
	rest := run(t, "", "once", "-f", delivers, "-n", "10")
	rest.ok(t, "delivered 1, failed 0")
	topics := map[string]bool{}
	for line := range strings.Lines(first.out + rest.out) {
		var event struct{ ID, Topic string }
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("standard output of the log sink is not JSON: %q", line)
		}
		topics[event.Topic] = true
	}
	need.That(t, topics["orders"] && topics["refunds"] && len(topics) == 2, "delivered topics %v, want orders and refunds", topics)
	need.Want(t, 2, "%d delivered, want 2", o.count(t, "status = 'delivered'"))
}

// Flags of one event are refused where lines are read, and --namespace is theirs too. Errors have the numbers of the lines.
func TestEnqueueReadsLines(t *testing.T) {
	t.Parallel()
	o := installed(t)
	file := o.file(t, o.producer, shop)
	one := `{"topic": "orders", "payload": 1}`
	run(t, one, "enqueue", "-f", file, "--delay", "1h").ended(t, 1, "--delay is for the event of --topic, which is missing; write it into the lines")
	run(t, one, "enqueue", "-f", file, "--namespace", "billing").ok(t, " enqueued\n")
	need.Want(t, 1, "%d events have the namespace of the flag, want 1", o.count(t, "namespace = 'billing'"))
	run(t, strings.Repeat(one, 502)+`{"topic": "", "payload": 1}`, "enqueue", "-f", file).ended(t, 1, "events 501 to 503: event 3 of 3: ", "nothing was enqueued")
	large := fmt.Sprintf(`{"topic": "orders", "payload": "%s"}`, strings.Repeat("x", 1<<20-2))
	if got := run(t, strings.Repeat(large, 40), "enqueue", "-f", file); strings.Count(got.out, " enqueued\n") != 40 {
		t.Errorf("40 events of 1 MiB: %s%s", got.out, got.err)
	}
}

// Where the connection ends during the commit, it is unknown whether the events are there.
func TestEnqueueSaysWhatTheCommitDid(t *testing.T) {
	t.Parallel()
	o := installed(t)
	file := o.file(t, o.producer, shop)
	for does, want := range map[string]string{
		"perform pg_terminate_backend(pg_backend_pid())": "the connection was lost during the commit, so whether anything was enqueued is unknown: look for the first of the 1 events, ",
		"raise 'no room'": "no room (SQLSTATE P0001); nothing was enqueued",
	} {
		o.exec(t, fmt.Sprintf(`create or replace function outbox.at_commit() returns trigger security definer language plpgsql as $$ begin %s; return new; end $$`, does))
		o.exec(t, `create constraint trigger at_commit after insert on outbox.outbox_events deferrable initially deferred for each row execute function outbox.at_commit()`)
		run(t, "", "enqueue", "-f", file, "--topic", "orders", "--payload", "1").ended(t, 1, want)
		o.exec(t, "drop trigger at_commit on outbox.outbox_events")
	}
}

// An outcome that the database refuses is in the line, and once fails: its event is delivered again.
func TestOnceSaysWhatTheDatabaseRefused(t *testing.T) {
	t.Parallel()
	o := installed(t)
	o.enqueue(t, 1)
	o.exec(t, `create function outbox.veto() returns trigger language plpgsql as $$ begin raise 'not this one'; end $$`)
	o.exec(t, `create trigger veto before update on outbox.outbox_events for each row when (new.status = 'delivered') execute function outbox.veto()`)
	run(t, "", "once", "-f", o.file(t, o.dispatcher, dispatching("{log: {}}"))).ended(t, 1, "lost 0, refused 1\n", "the database refused the outcomes of 1 events, which are delivered again")

	o.enqueue(t, 1)
	o.exec(t, `create or replace function outbox.veto() returns trigger language plpgsql as $$ begin if new.seq = 2 then raise 'not this one'; end if; return new; end $$`)
	o.exec(t, `drop trigger veto on outbox.outbox_events; create trigger veto before update on outbox.outbox_events for each row execute function outbox.veto()`)
	run(t, "", "once", "-f", o.file(t, o.dispatcher, dispatching("{log: {}}"))).ended(t, 1, "the database refuses to lease events: event ", "not this one")
}

// A right that is missing is named, whichever it is; those of `migrate grants` are all that is needed.
func TestCheckNamesEachMissingRight(t *testing.T) {
	t.Parallel()
	o := installed(t)
	file := o.file(t, o.dispatcher, dispatching("{log: {}}"))
	for _, right := range []string{"select on outbox_events", "update on outbox_events", "delete on outbox_events", "select on outbox_dead_letters", "insert on outbox_dead_letters",
		"delete on outbox_dead_letters", "update (resolution, resolved_at, resolved_by, notify_at, notify_attempts, notified_at) on outbox_dead_letters", "select on outbox_migrations",
		"select on outbox_workers", "insert on outbox_workers", "update on outbox_workers", "delete on outbox_workers",
		"select on outbox_sweeps", "insert on outbox_sweeps", "update on outbox_sweeps", "select on outbox_replays", "execute on outbox_replay_sweep", "execute on outbox_replay_claims",
		"select on outbox_journal", "select on outbox_journal_settings", "execute on outbox_journal_keep", "execute on outbox_journal_digest", "select on outbox_fence", "execute on outbox_fence_raise",
		"execute on outbox_fence_down", "execute on outbox_sequences_behind", "usage on outbox_leases", "usage on schema outbox"} {
		what, on, _ := strings.Cut(right, " on ")
		object := "outbox." + on
		switch on {
		case "schema outbox":
			object = on
		case "outbox_leases":
			object = "sequence " + object
		default:
			if what == "execute" {
				object = "function " + object
			}
		}
		o.exec(t, fmt.Sprintf("revoke %s on %s from %s", what, object, o.dispatcher))
		run(t, "", "check", "-f", file).ended(t, 1, "FAIL grants: "+o.dispatcher+" lacks "+right+"; have the owner run")
		o.exec(t, fmt.Sprintf("grant %s on %s to %s", what, object, o.dispatcher))
	}
	run(t, "", "check", "-f", file).ok(t)
}

func TestCheckTriesTheDestination(t *testing.T) {
	t.Parallel()
	o := installed(t)
	consumer := httptest.NewServer(nil)
	defer consumer.Close()
	yaml := dispatching("{http: {url: '" + consumer.URL + "'}}")
	file := o.file(t, o.dispatcher, yaml)
	run(t, "", "check", "-f", file).ok(t, "ok   sink: ")
	consumer.Close()
	run(t, "", "check", "-f", file).ended(t, 1, "FAIL sink: ", "connection refused", "dispatcher: 1 of 5 checks failed")
	o.login(t, o.dispatcher, "wrong")
	run(t, "", "check", "-f", file).ended(t, 1, "FAIL database: ", "password authentication failed", "FAIL sink: ")
	o.enqueue(t, 1)
	run(t, "", "once", "-f", file).ended(t, 1, "password authentication failed")
	o.login(t, o.dispatcher, secret)
	run(t, "", "once", "-f", file).ended(t, 1, "connection refused")
	need.Want(t, 1, "the outage spent the event's attempt", o.count(t, "status = 'pending' and attempts = 0"))
}

// CONTRACT: C-28, C-73
func TestBadCommandLinesAndFiles(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Empty(t))
	yaml := dispatching("{log: {}}")
	bad := o.file(t, o.dispatcher, yaml+"delivery: {lease: 10s, pollInterval: 5s, batchSize: 0.5}\n")
	slow := o.file(t, o.dispatcher, yaml+"delivery: {lease: 10s, pollInterval: 5s, concurrency: -1}\n")
	only := o.file(t, o.dispatcher, "")
	check(t, objects.Secret(o.dir, "unreadable", "dsn", "postgres://user:"+secret+"@host:port%zz/db"))
	unreadable := o.file(t, "unreadable", yaml)
	for _, c := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{"run"}, 1, []string{"name its file with -f"}},
		{[]string{"run", "-f", "/does/not/exist"}, 78, []string{"/does/not/exist", "name it with -f"}},
		{[]string{"run", "-f", only, "extra"}, 1, []string{"extra"}},
		{[]string{"run", "--bogus"}, 1, []string{"unknown flag: --bogus"}},
		{[]string{"bogus"}, 1, []string{`dispatcher has no command "bogus"; name one of these: adopt, `}},
		{[]string{"run", "-f", bad}, 78, []string{"line 16, column 5: spec.delivery.batchSize: Invalid value: \"number\": spec.delivery.batchSize in body must be of type integer"}},
		{[]string{"run", "-f", slow}, 78, []string{"spec.delivery.pollInterval: Invalid value: pollInterval must be at most a third of lease", "spec.delivery.concurrency: Invalid value: -1"}},
		{[]string{"check", "-f", unreadable}, 1, []string{"does not make a valid connection string"}},
		{[]string{"check", "-f", slow}, 78, []string{"FAIL config: line "}},
		{[]string{"once", "-f", only}, 78, []string{"has no OutboxDispatcher, whose spec.namespace says whose events these are"}},
		{[]string{"once", "-f", o.file(t, o.dispatcher, yaml), "-n", "0"}, 1, []string{"-n is 0"}},
		{[]string{"migrate", "grants", "--role", "a", "--for", "everything"}, 1, []string{`--for is "everything"; choose dispatcher, producer, replay, m10 or overview`}},
		{[]string{"migrate", "grants", "--role", "a", "--apply"}, 1, []string{"name the owner's file with -f"}},
		{[]string{"version"}, 0, []string{"dev\n"}},
		{[]string{"--help"}, 0, []string{"78  the configuration is refused"}},
	} {
		o := run(t, "", c.args...)
		o.ended(t, c.code, c.want...)
		if lines := strings.Split(strings.TrimSpace(o.err), "\n"); c.code != 0 && (len(lines) != 1 || !strings.HasPrefix(lines[0], "dispatcher: ")) {
			t.Errorf("%v: standard error has more than its last line:\n%s", c.args, o.err)
		}
	}

	// The reason is left where Kubernetes finds it.
	message := filepath.Join(t.TempDir(), "termination-log")
	check(t, os.WriteFile(message, []byte("what was there before, and is longer than anything that follows it in this test, whatever it is"), 0o600))
	cmd := command(t, "migrate", "up", "-f", "/does/not/exist")
	cmd.Env = append(cmd.Env, "TERMINATION_LOG="+message)
	finish(t, cmd, "").ended(t, 78)
	text, err := os.ReadFile(message)
	check(t, err)
	if got := string(text); !strings.HasPrefix(got, "read the file: ") || strings.Contains(got, "before") {
		t.Errorf("the termination message is %q", got)
	}
}

// part is a block of a page, under a comment with its name.
func part(t *testing.T, page, name string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	check(t, err)
	found := regexp.MustCompile("(?s)<!-- " + regexp.QuoteMeta(name) + " -->\n```[a-z]+\n(.*?)```").FindSubmatch(text)
	need.Must(t, found != nil, "%s has no %q", page, name)
	return string(found[1])
}

// Five minutes without Kubernetes, from the pages alone: the logins, the schema, a check, the producer's rights, and an event
// of each function that arrives.
func TestFirstFiveMinutesOfThePagesWork(t *testing.T) {
	t.Parallel()
	const front, page = "../../../README.md", "../../README.md"
	o := newOutbox(t, pgtest.Empty(t)) // its logins are another's
	database := strings.TrimPrefix(o.dsn.Path, "/")
	name := map[string]string{"outbox_owner": database + "_1", "outbox_dispatcher": database + "_2", "app": database + "_3"}
	logins := strings.NewReplacer("outbox_owner", name["outbox_owner"], "outbox_dispatcher", name["outbox_dispatcher"], "database shop", "database "+database, "…", secret)
	o.exec(t, logins.Replace(part(t, front, "logins"))+fmt.Sprintf("create role %s login password '%s'", name["app"], secret))
	for _, role := range name {
		pgtest.DropRole(t, o.admin.Pool, role)
	}
	file := filepath.Join(o.dir, "orders.yaml")
	sink := regexp.MustCompile("(?m)^  sink: .*$")
	check(t, os.WriteFile(file, []byte(sink.ReplaceAllString(part(t, page, "orders.yaml"), "  sink: {log: {}}")), 0o600))
	for secretName, role := range map[string]string{"orders-db": name["outbox_dispatcher"], "orders-db-owner": name["outbox_owner"]} {
		o.login(t, role, secret)
		o.mount(t, secretName, secretOf(role))
	}
	for _, line := range strings.Split(part(t, page, "five minutes"), "\n") {
		if command, _, _ := strings.Cut(line, "#"); strings.TrimSpace(command) != "" && !strings.HasPrefix(line, "dispatcher run") {
			command = strings.ReplaceAll(strings.TrimPrefix(strings.TrimSpace(command), "dispatcher "), "orders.yaml", file)
			run(t, "", strings.Fields(command)...).ok(t)
		}
	}
	grants := strings.NewReplacer("APP", name["app"]).Replace(part(t, front, "producer"))
	o.exec(t, "set role "+name["outbox_owner"]+"; "+grants+"; reset role")
	o.exec(t, "set role "+name["app"]+`; select outbox.enqueue('shop', 'orders', '{}'); select outbox.enqueue_batch('{shop}', '{orders}', array['{}'::jsonb]); reset role`)

	dsn := o.dsnOf(t, "orders-db")
	cmd := command(t, "once", "-f", file, "-n", "2", "--secrets", t.TempDir())
	cmd.Env = append(cmd.Env, "DATABASE_URL="+dsn)
	finish(t, cmd, "").ok(t)
	need.Want(t, 2, "%d events are delivered, want 2", o.count(t, "status = 'delivered'"))
}

// check reports what the rows of the last hour will take until their retention ends.
func TestCheckReportsBytesOfAnEvent(t *testing.T) {
	t.Parallel()
	o := installed(t)
	o.exec(t, `select count(*) from generate_series(1, 1000) as g, lateral outbox.enqueue('shop', 'orders', '{}'); analyze outbox.outbox_events;
		insert into outbox.outbox_workers (worker, namespace, dispatcher, delivered_1h) values (gen_random_uuid(), 'shop', 'orders', 360000)`)
	report := run(t, "", "check", "-f", o.file(t, o.dispatcher, dispatching("{log: {}}")), "--data")
	report.ok(t, "ok", "size", " bytes an event; at the 100 events/s of the last 1h, retention.delivered of 168h keeps ")
}

// The page of producers names each field of the lines that enqueue reads.
func TestPageNamesTheFieldsOfLines(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../client/producer/README.md")
	check(t, err)
	found := regexp.MustCompile(`(?s)fields (namespace, .*? and id)\.`).FindStringSubmatch(run(t, "", "enqueue", "--help").out)
	if found == nil {
		t.Fatal("the help of enqueue does not name the fields")
	}
	_, section, _ := strings.Cut(string(page), "## From the command line\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, field := range regexp.MustCompile(`[a-z_]+`).FindAllString(strings.Replace(found[1], " and ", ", ", 1), -1) {
		need.That(t, strings.Contains(section, "`"+field+"`"), "the page does not name %s", field)
	}
}
