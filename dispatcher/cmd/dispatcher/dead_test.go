package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
	"github.com/outbox-operator/outbox-operator/hack/testing/browser"
	"github.com/outbox-operator/outbox-operator/hack/testing/need"
	"github.com/outbox-operator/outbox-operator/hack/testing/objects"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
	"github.com/outbox-operator/outbox-operator/migrations"
)

// Refused events are found with the dispatcher's own login, by the commands and through a pod's endpoint. Payloads are
// shown on request only. CONTRACT: C-41
func TestDeadLettersAreFound(t *testing.T) {
	t.Parallel()
	o := installed(t)
	consumer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnprocessableEntity)
	}))
	defer consumer.Close()
	file := o.file(t, o.dispatcher, dispatching("{http: {url: '"+consumer.URL+"'}}")+"delivery: {maxAttempts: 1}\n")
	run(t, `{"namespace": "shop", "topic": "orders", "payload": {"price": -1}, "dedupe_key": "order-17", "event_type": "OrderPlaced"}`, "enqueue", "-f", o.file(t, o.producer, "")).ok(t)
	o.enqueue(t, 2)
	p := start(t, file)
	await(t, "three dead", func() bool { return o.count(t, "status = 'dead'") == 3 })

	var groups deadletters.Groups
	asJSON(t, run(t, "", "dead", "groups", "-f", file, "--output", "json"), &groups)
	if len(groups.Groups) != 1 || groups.Groups[0].Count != 3 || groups.Groups[0].Topic != "orders" || groups.Groups[0].Reason != dispatcher.ReasonMaxRetriesExceeded {
		t.Fatalf("groups %+v", groups)
	}
	var page deadletters.Page
	asJSON(t, run(t, "", "dead", "list", "-f", file, "--type", "OrderPlaced", "--group", groups.Groups[0].Group, "-o", "json"), &page)
	need.Must(t, len(page.DeadLetters) == 1, "dead letters %+v", page)
	id := page.DeadLetters[0].Event
	run(t, "", "dead", "show", "-f", file, id).ok(t, "Topic:         orders\n", "Resolution:    open\n", "Event is now:  dead\n", "Last failed attempts:\n")
	if shown := run(t, "", "dead", "show", "-f", file, id); strings.Contains(shown.out, "price") {
		t.Errorf("a payload without --payload:\n%s", shown.out)
	}
	run(t, "", "dead", "show", "-f", file, id, "--payload").ok(t, `"price": -1`)
	run(t, "", "events", "show", "-f", file, "order-17").ok(t, "Event:       "+id, "enqueued", "dead  ")
	run(t, "", "events", "show", "-f", file, id, "--payload").ok(t, `"price": -1`)
	run(t, "", "dead", "list", "-f", file, "--limit", "2").ok(t, "there are more: add --after ")

	pod := deadletters.Client{URL: "http://" + p.address}
	deadLetter, err := pod.Show(t.Context(), id, false)
	check(t, err)
	need.That(t, deadLetter.Event == id && deadLetter.Payload == nil, "the pod returned %+v, want event %s without payload", deadLetter, id)
	if deadLetter, err = pod.Show(t.Context(), id, true); err != nil || string(deadLetter.Payload) != `{"price":-1}` {
		t.Errorf("the pod returned the payload %s, %v", deadLetter.Payload, err)
	}
	need.Want(t, 3, "%d are dead after looking at them, want 3", o.count(t, "status = 'dead'"))
}

func asJSON(t *testing.T, o output, into any) {
	t.Helper()
	o.ok(t)
	check(t, json.Unmarshal([]byte(o.out), into))
}

// The console of a file counts, replays and follows what the commands do, with the login for replays; another login only looks.
// CONTRACT: C-42
func TestConsoleReplaysAGroup(t *testing.T) {
	t.Parallel()
	o := installed(t)
	var code atomic.Int32
	consumer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(code.Load())) }))
	defer consumer.Close()
	code.Store(http.StatusUnprocessableEntity)
	file := o.file(t, o.dispatcher, dispatching("{http: {url: '"+consumer.URL+"'}}")+"delivery: {maxAttempts: 1}\n")
	o.enqueue(t, 3)
	start(t, file)
	await(t, "three dead", func() bool { return o.count(t, "status = 'dead'") == 3 })
	o.exec(t, "update outbox.outbox_dead_letters set dead_at = dead_at - interval '1 minute'; update outbox.outbox_events set expires_at = now()")
	cmd := command(t, "ui", "-f", file)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	t.Cleanup(func() { need.OK(t, errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait())) })
	b, page := browser.Open(t, out)
	group := regexp.MustCompile("/d/-/orders/dead.group=[0-9a-f]{8}").FindString(page.Text)
	need.That(t, group != "" && strings.Contains(page.Text, "CheckFailed") && strings.Contains(page.Text, "became dead in the last 1h"), "the page:\n%s", page.Text)
	page = b.Get(group)
	need.That(t, strings.Contains(page.Text, "migrate grants --for replay") && !strings.Contains(page.Text, `value="replay"`), "without the grants:\n%s", page.Text)
	for _, sql := range migrations.Grants(pgtest.Schema, o.dispatcher, migrations.ReplayLogin) {
		o.exec(t, sql)
	}
	page = b.Get(group)
	page = b.Submit(page, "dry-replay", "reason", "CHG-812")
	need.That(t, strings.Contains(page.Text, "would replay 3 of 3"), "the dry run:\n%s", page.Text)
	other := b.Get(group) // in another tab
	o.enqueue(t, 1)
	await(t, "the group grows", func() bool { return o.count(t, "status = 'dead'") == 4 })
	code.Store(http.StatusNoContent)
	replayed := b.Submit(page, "replay", "reason", "CHG-812", "canary", "1", "expires", "1h")
	b.Submit(page, "replay", "reason", "CHG-812", "canary", "1", "expires", "1h") // after Back
	other = b.Submit(other, "discard", "reason", "CHG-813")
	need.That(t, strings.Contains(other.Text, "0 of ") && strings.Contains(other.Text, "</span> finished"), "the other tab:\n%s", other.Text)
	await(t, "all delivered", func() bool {
		page = b.Get(replayed.Path)
		noSecret(t, page.Text)
		return strings.Contains(page.Text, "3 of 3 put back, 3 delivered") && strings.Contains(page.Text, "See what is dead now")
	})
	page = b.Get("/d/-/orders/replays")
	need.Want(t, 3, "%d operations, want a dry run, a replay and a discard of nothing", strings.Count(page.Text, `<td class="k" data-label="State">`))
	page = b.Get("/d/-/orders/groups")
	need.That(t, strings.Contains(page.Text, "<h1>1 dead</h1>"), "the groups:\n%s", page.Text)
	text, err := os.ReadFile(file)
	check(t, err)
	rule := "  message: {validation: [{rules: [{rule: has(payload.total), message: a total}]}]}\n  delivery:\n"
	check(t, os.WriteFile(file, []byte(strings.Replace(string(text), "  delivery:\n", rule, 1)), 0o600))
	page = b.Get("/d/-/orders/try")
	need.That(t, strings.Contains(page.Text, "<h1>3 of 4 past events come out otherwise</h1>") && strings.Contains(page.Text, "a total") && !strings.Contains(page.Text, secret) && strings.Contains(page.Text, "dispatcher try -f "+file+"</code>"), "the file is tried:\n%s", page.Text)
}

// An error is one line with its remedy.
func TestReadingIsRefused(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.Empty(t))
	file := o.file(t, o.dispatcher, shop)
	run(t, "", "dead", "list", "-f", o.file(t, o.dispatcher, "")).ended(t, 78, "has no OutboxDispatcher")
	run(t, "", "dead", "groups").ended(t, 1, "name its file with -f")
	run(t, "", "dead", "list", "-f", file).ended(t, 1, "run `dispatcher migrate up`")
	o.migrated(t)
	run(t, "", "dead", "show", "-f", file, "7").ended(t, 1, "no dead letter 7 in the namespace shop: not found; `dead list` has those that are there")
	run(t, "", "events", "show", "-f", file, "order-1").ended(t, 1, "no event has this id or dedupe key in the namespace shop: not found")
	run(t, "", "dead", "list", "-f", file, "--group", "2").ended(t, 1, `the filter is wrong: group: "2" is not a group; give its 8 hex digits`)
	run(t, "", "dead", "list", "-f", file).ok(t, "no dead letters match")
	o.exec(t, "revoke select on outbox.outbox_dead_letters from "+o.dispatcher)
	run(t, "", "dead", "list", "-f", file).ended(t, 1, "migrate grants")
	o.login(t, o.dispatcher, "wrong")
	run(t, "", "dead", "list", "-f", file).ended(t, 1, "password authentication failed")
}

// A notification that a killed process did not finish is sent again by the next process, with the same id. While the
// address responds with 503, events are delivered. CONTRACT: C-43, C-73
// REQUIREMENT: STORAGE-53
func TestNotificationIsSentAgainAfterAKill(t *testing.T) {
	t.Parallel()
	o := installed(t)
	var refuses, unavailable atomic.Bool
	refuses.Store(true)
	consumer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if refuses.Load() {
			w.WriteHeader(http.StatusUnprocessableEntity)
		}
	}))
	t.Cleanup(consumer.Close)

	var mu sync.Mutex
	var ids []string // of the requests
	requested := make(chan struct{}, 1)
	address := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body strings.Builder
		_ = r.Write(&body)
		noSecret(t, strings.ReplaceAll(body.String(), "Bearer token-"+secret, ""))
		need.Want(t, "Bearer token-"+secret, "the request lacks the token of the file", r.Header.Get("Authorization"))
		mu.Lock()
		ids = append(ids, r.Header.Get("Ce-Id"))
		first := len(ids) == 1
		mu.Unlock()
		switch {
		case first:
			requested <- struct{}{}
			<-r.Context().Done() // the process is killed
		case unavailable.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(address.Close)
	check(t, objects.Secret(o.dir, "webhook", "token", "token-"+secret))
	yaml := dispatching("{http: {url: '"+consumer.URL+"'}}") + "delivery: {maxAttempts: 1}\nnotify: {url: '" + address.URL + "/dead-letters', auth: {type: Token, secretRef: {name: webhook}}}\n"
	file := o.file(t, o.dispatcher, yaml)
	run(t, "", "check", "-f", file).ok(t, "ok   notify: the address of notify can be reached", "ok   grants:")

	o.enqueue(t, 1)
	killed := start(t, file)
	<-requested
	check(t, killed.cmd.Process.Kill())
	<-killed.done
	deadLetters := func(where string) (n int) {
		check(t, o.admin.QueryRow(t.Context(), "select count(*) from outbox.outbox_dead_letters where "+where).Scan(&n))
		return n
	}
	if n := deadLetters("notify_at > now() and notify_attempts = 1 and notified_at is null"); n != 1 {
		t.Fatalf("%d dead letters wait for their notification, want 1", n)
	}

	refuses.Store(false)
	unavailable.Store(true)
	soon := "update outbox.outbox_dead_letters set notify_at = now() where notify_at is not null"
	o.exec(t, soon) // two minutes later
	p := start(t, file)
	await(t, "the address responds with 503", func() bool {
		n := p.status(t).Notifications
		return n != nil && n.Failed > 0 && n.Waiting == 1 && n.Oldest != nil && strings.Contains(n.Message, "notify: "+address.URL+"/dead-letters responded 503")
	})
	o.enqueue(t, 3)
	await(t, "events are delivered meanwhile", func() bool { return o.count(t, "status = 'delivered'") == 3 })
	need.Want(t, 0, "%d are notified while the address is unavailable, want 0", deadLetters("notified_at is not null"))
	unavailable.Store(false)
	await(t, "it is notified", func() bool {
		o.exec(t, soon)
		return deadLetters("notified_at is not null") == 1
	})
	await(t, "the metrics say so", func() bool {
		_, metrics := p.get(t, "/metrics")
		labels := `dispatcher="orders",outbox_namespace="shop"`
		return strings.Contains(metrics, fmt.Sprintf(`outbox_dlq_notifications_total{%s,outcome="sent",sink="http"} 1`, labels)) &&
			strings.Contains(metrics, fmt.Sprintf(`outbox_dlq_notifications_waiting{%s,sink="http"} 0`, labels))
	})
	await(t, "the status says so", func() bool {
		n := p.status(t).Notifications
		return n != nil && n.Sent == 1 && n.GivenUp == 0 && n.Message == ""
	})
	need.Want(t, 0, "exit code %d, want 0", p.stop(t))
	mu.Lock()
	defer mu.Unlock()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("the dead letter was sent with the ids %v, want one id", ids)
			break
		}
	}
}

// operating is a migrated outbox with a replay login, and its file.
func operating(t testing.TB) (o *outbox, file string) {
	t.Helper()
	return operatingOn(t, pgtest.Empty(t))
}

// operatingOn is operating in a database, of which superuser is the connection string.
func operatingOn(t testing.TB, superuser string) (o *outbox, file string) {
	t.Helper()
	o = newOutbox(t, superuser).migrated(t)
	login := strings.TrimSuffix(o.owner, "owner") + "replay"
	o.exec(t, fmt.Sprintf("create role %s login password '%s'", login, secret))
	o.login(t, login, secret)
	pgtest.DropRole(t, o.admin.Pool, login)
	run(t, "", "migrate", "up", "-f", o.file(t, o.owner, ""), "--grant-to-login-of", o.file(t, o.dispatcher, "replayLogin: {secretRef: {name: "+secretOf(login)+"}}")).ok(t,
		"granted a dispatcher's rights on schema outbox to "+o.dispatcher, "granted a replay login's rights on schema outbox to "+login)
	return o, o.file(t, login, shop)
}

// replays is a file for requests, next to which is the login that operates.
func (o *outbox) replays(t testing.TB) (file string) {
	t.Helper()
	dir := t.TempDir()
	check(t, objects.Secret(dir, "replay", "dsn", o.dsnOf(t, strings.TrimSuffix(o.owner, "owner")+"replay")))
	return filepath.Join(dir, "replay.yaml")
}

// request writes a DeadLetterReplay of topic orders to a file, as the operator does. spec has the rest of it.
func (o *outbox) request(t testing.TB, file, uid, spec string) {
	t.Helper()
	check(t, os.WriteFile(file, fmt.Appendf(nil, `apiVersion: outbox.dev/v1alpha1
kind: DeadLetterReplay
metadata: {name: chg-812, namespace: apps, uid: %q}
spec: {outboxRef: {name: main}, namespace: shop, selector: {topics: [orders]}, %s}
---
apiVersion: outbox.dev/v1alpha1
kind: Outbox
metadata: {name: main, namespace: apps}
spec: {secretRef: {name: app}, replayLogin: {secretRef: {name: replay}}}
`, uid, spec), 0o600))
}

// makeDead makes the pending events dead.
func (o *outbox) makeDead(t testing.TB) {
	t.Helper()
	o.exec(t, `with dead as (
			update outbox.outbox_events set status = 'dead', dead_reason = 'permanent_failure', last_error = '422' where status = 'pending' returning *
		)
		insert into outbox.outbox_dead_letters (event_id, namespace, topic, seq, key_hash, reason, attempts, error)
		select id, namespace, topic, seq, key_hash, dead_reason, attempts, last_error from dead`)
}

// progress is the last line of JSON that a command printed.
func progress(t testing.TB, text string) (p status.Replay) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(text), "\n")
	check(t, json.Unmarshal([]byte(lines[len(lines)-1]), &p))
	return p
}

// A person replays and discards with a database login, which may do that and no more. Who and why stay with the dead letters.
// CONTRACT: C-42
// REQUIREMENT: STORAGE-44
func TestDeadReplayAndDiscard(t *testing.T) {
	t.Parallel()
	o, file := operating(t)
	o.enqueue(t, 10)
	o.makeDead(t)

	run(t, "", "dead", "replay", "-f", file).ended(t, 1, "at least one of the flags in the group [reason operation request] is required")
	run(t, "", "dead", "replay", "-f", file, "--reason", "CHG-812").ended(t, 1, "no filter; choose dead letters", "or add --all")
	run(t, "", "dead", "replay", "-f", file, "--reason", " ", "--all").ended(t, 1, "reason: it is missing; say why")
	run(t, "", "dead", "replay", "-f", file, "--reason", "CHG-812", "--all", "--rate", "-1").ended(t, 1, "rate: -1 is not from 1 to")
	run(t, "", "dead", "replay", "-f", o.file(t, o.producer, shop), "--reason", "CHG-812", "--all").ended(t, 1, "permission denied", "migrate grants --for replay")
	run(t, "", "dead", "replay", "-f", file, "--reason", "CHG-812", "--dead-reason", "poison_message", "--dry-run").ok(t, "would replay 0 of 0\n")
	run(t, "", "dead", "replay", "-f", file, "--reason", "CHG-812", "--id", "1,2,3", "--dry-run").ok(t, "would replay 3 of 3\n")
	run(t, "", "dead", "replay", "-f", file, "--reason", "CHG-812", "--all", "--dry-run").ok(t, "would replay 10 of 10\n")
	others := strings.TrimSuffix(o.owner, "owner") + "replay"
	run(t, "", "dead", "replay", "-f", o.file(t, others, shop+"topics: [bills]\n"), "--reason", "CHG-812", "--all", "--dry-run").ok(t, "would replay 0 of 0\n")
	if n := o.count(t, "status = 'dead'"); n != 10 {
		t.Fatalf("%d dead after refusals and dry runs, want 10", n)
	}

	for _, flag := range []string{"--dry-run", "--rate=20", "--all", "--group=7f3a9c21"} {
		run(t, "", "dead", "replay", "-f", file, "--operation", "5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11", flag).ended(t, 1, " is for a new replay, and one that exists keeps its set and its rate")
	}
	run(t, "", "dead", "discard", "-f", file, "--reason", "CHG-812", "--topic", "orders", "--group", "").ended(t, 1, "--group is empty; give it a value, or leave it out")
	run(t, "", "dead", "reopen", "-f", file, "--reason", "CHG-812", "--all", "--operation", "").ended(t, 1, "--operation is empty")

	for _, action := range []string{"replay", "discard", "reopen"} {
		run(t, "", "dead", action, "-f", file, "--reason", "CHG-812", "--id", "1,99").ended(t, 1, "99: nothing that a "+action+" can take")
	}
	run(t, "", "dead", "replay", "-f", file, "--reason", "CHG-812", "--id", "1,2,3").ok(t, "0 of 3 put back, 0 delivered\n", "3 of 3 put back, 0 delivered, 3 not delivered yet\n")
	run(t, "", "dead", "discard", "-f", file, "--reason", "load test", "--requested-by", "alice", "--topic", "orders").ok(t, "7 of 7 discarded\n")
	run(t, "", "dead", "replay", "-f", file, "--reason", "CHG-812", "--id", "1,4", "--dry-run").ended(t, 1, "--id: 1, 4: nothing that a replay can take, of the file's namespace and topics; nothing was changed")
	who := pgtest.Value[string](o.admin, `select string_agg(distinct concat_ws(' ', resolution, resolved_by, resolution_reason), ', ' order by concat_ws(' ', resolution, resolved_by, resolution_reason)) from outbox.outbox_dead_letters`)
	if want := "discarded alice load test, replayed " + strings.TrimSuffix(o.owner, "owner") + "replay CHG-812"; who != want {
		t.Errorf("the dead letters say %q, want %q", who, want)
	}
	if dead, pending := o.count(t, "status = 'dead'"), o.count(t, "status = 'pending'"); dead != 7 || pending != 3 {
		t.Errorf("%d dead and %d pending, want 7 and 3", dead, pending)
	}

	// The dedupe key of a dead event is taken. CONTRACT: C-11
	keyed := func() string {
		return run(t, "", "enqueue", "-f", o.file(t, o.producer, ""), "--namespace", "bills", "--topic", "bills", "--payload", "{}", "--dedupe-key", "42").out
	}
	first, _, _ := strings.Cut(keyed(), " ")
	o.exec(t, `update outbox.outbox_events set status = 'dead', dead_reason = 'permanent_failure' where topic = 'bills'`)
	need.Want(t, first+" already enqueued\n", "the key of the dead event %s again: %q", keyed(), first)

	// It waits for the outcome of a dispatcher, and says what was delivered.
	p := start(t, o.file(t, o.dispatcher, dispatching("{log: {}}")))
	await(t, "the three are delivered", func() bool { return o.count(t, "status = 'delivered'") == 3 })
	run(t, "", "dead", "reopen", "-f", file, "--reason", "they were no test", "--all", "--limit", "4").ok(t, "4 of 4 reopened\n")
	run(t, "", "dead", "reopen", "-f", file, "--reason", "they were no test", "--all").ok(t, "3 of 3 reopened\n")
	waited := run(t, "", "dead", "replay", "-f", file, "--reason", "CHG-813", "--all", "--canary", "2", "--wait", "-o", "json")
	waited.ok(t)
	if last := progress(t, waited.out); last.Delivered != 7 || last.FinishedAt.IsZero() || last.Matched != 7 {
		t.Errorf("it ended with %+v", last)
	}
	need.Want(t, 0, "exit code %d, want 0", p.stop(t))

	// The replay stops when its canary is dead again, which is a failure.
	o.enqueue(t, 5)
	o.makeDead(t)
	aborted := command(t, "dead", "replay", "-f", file, "--reason", "CHG-814", "--all", "--canary", "2")
	text := &log{}
	aborted.Stdout, aborted.Stderr = text, text
	check(t, aborted.Start())
	await(t, "the canary is put back", func() bool { return o.count(t, "status = 'pending'") == 2 })
	o.makeDead(t)
	_ = aborted.Wait() // its exit code is looked at
	if code := aborted.ProcessState.ExitCode(); code != 1 || !strings.Contains(text.String(), "stopped: 2 of 5 put back, 0 delivered, 2 dead again, 3 skipped: stopped") ||
		!strings.Contains(text.String(), "was stopped: 2 of the newest 2 outcomes are failures, which is 50 % or more; see the reasons") {
		t.Errorf("exit code %d:\n%s", code, text)
	}
}

// A replay that was stopped or interrupted ends with its remedy, can be read, and can be continued.
func TestReplayRunContinuesAfterAnInterruption(t *testing.T) {
	t.Parallel()
	o, file := operating(t)
	o.enqueue(t, 20)
	o.makeDead(t)
	const id = "5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11"
	requestFile := o.replays(t)
	write := func(spec string) { o.request(t, requestFile, id, spec) }

	write("action: Replay, reson: x")
	run(t, "", "dead", "replay", "--request", requestFile).ended(t, 78, `unknown field "spec.reson"; did you mean reason?`)
	write("action: Replay, reason: CHG-812")
	run(t, "", "dead", "replay", "--request", requestFile).ended(t, 78, "spec.requestedBy: Required value")
	o.request(t, requestFile, "", "action: Replay, reason: CHG-812, requestedBy: alice")
	run(t, "", "dead", "replay", "--request", requestFile).ended(t, 78, "metadata.uid is missing")
	write("action: Replay, reason: CHG-812, requestedBy: alice, dryRun: true")
	run(t, "", "dead", "replay", "--request", requestFile).ok(t, "would replay 20 of 20\n")
	run(t, "", "dead", "operations", "-f", file, "--operation", id).ended(t, 1, "operation "+id+": there is no operation of this id")
	run(t, "", "dead", "operations", "-f", file, "--operation", "x").ended(t, 1, "which is not a UUID")

	// An event whose time is over needs a new one. CONTRACT: C-18
	o.exec(t, `update outbox.outbox_events set expires_at = now() - interval '1 hour' where seq = (select min(seq) from outbox.outbox_events)`)
	write("action: Replay, reason: CHG-812, requestedBy: alice")
	run(t, "", "dead", "replay", "--request", requestFile).ended(t, 78, "the time of 1 of the events is over", "give them a new one: expires, such as 1h")

	// It is killed while it waits for its canary, and then interrupted.
	write("action: Replay, reason: CHG-812, requestedBy: alice, canary: 3, abortAt: 100, expires: 1h")
	broken := command(t, "dead", "replay", "--request", requestFile)
	broken.Stdout = &log{}
	check(t, broken.Start())
	await(t, "the canary is put back", func() bool { return o.count(t, "status = 'pending'") == 3 })
	need.Want(t, 1, "%d events have a new time, want %d", o.count(t, "status = 'pending' and expires_at > now() + interval '50 minutes'"))
	check(t, broken.Process.Kill())
	_ = broken.Wait() // it was killed
	run(t, "", "dead", "operations", "-f", file, "--operation", id).ok(t, "replay "+id+": 3 of 20 put back, 0 delivered, 3 not delivered yet\n  3 wait for a dispatcher that serves their topic, such as ")
	timedOut := run(t, "", "dead", "replay", "-f", file, "--operation", id, "--wait", "--timeout", "1ms")
	timedOut.ended(t, 1, "nothing has happened for 1ms: 3 of 20 put back, 0 delivered, 3 not delivered yet", "3 wait for a dispatcher", "`dispatcher dead replay -f "+file+" --operation "+id+" --wait` continues it")
	others := o.file(t, strings.TrimSuffix(o.owner, "owner")+"replay", "namespace: bills\nsink: {log: {}}\n")
	run(t, "", "dead", "operations", "-f", others, "--operation", id).ended(t, 1, `of "shop", and not of "bills"; name the file of a dispatcher of "shop"`)
	run(t, "", "dead", "replay", "-f", others, "--operation", id).ended(t, 1, `of "shop", and not of "bills"`)
	run(t, "", "dead", "stop", "-f", others, "--operation", id, "--reason", "x").ended(t, 1, `of "shop", and not of "bills"`)
	o.exec(t, `update outbox.outbox_events set status = 'delivered' where status = 'pending'`)
	interrupted := command(t, "dead", "replay", "--request", requestFile)
	text := &log{}
	interrupted.Stdout, interrupted.Stderr = text, text
	check(t, interrupted.Start())
	await(t, "all is put back", func() bool { return o.count(t, "status = 'pending'") == 17 })
	check(t, interrupted.Process.Signal(os.Interrupt))
	_ = interrupted.Wait() // its exit code is looked at
	if code := interrupted.ProcessState.ExitCode(); code != 1 || !strings.Contains(text.String(), "it was interrupted; `dispatcher dead replay -f "+requestFile+" --operation "+id+" --wait` continues it") {
		t.Errorf("exit code %d:\n%s", code, text)
	}
	o.exec(t, `update outbox.outbox_events set status = 'delivered' where status = 'pending'`)
	message := filepath.Join(t.TempDir(), "message")
	check(t, os.WriteFile(message, nil, 0o600))
	last := command(t, "dead", "replay", "--request", requestFile)
	last.Env = append(last.Env, "TERMINATION_LOG="+message)
	finish(t, last, "").ok(t, "20 of 20 put back, 20 delivered\n")
	left, err := os.ReadFile(message)
	check(t, err)
	if p := progress(t, string(left)); p.Delivered != 20 || p.ID.String() != id || p.FinishedAt.IsZero() {
		t.Errorf("the termination message is %s", left)
	}

	// What is listed: the operations, with the login, and the dead letters of one with their outcomes.
	run(t, "", "dead", "operations", "-f", file).ok(t, "OPERATION", "finished", "alice", strings.TrimSuffix(o.owner, "owner")+"replay", "CHG-812", "20 of 20 put back, 20 delivered")
	if all := run(t, "", "dead", "operations", "-f", others).out; strings.Contains(all, id) {
		t.Errorf("with the file of another namespace it is listed:\n%s", all)
	}
	listed := run(t, "", "dead", "list", "-f", file, "--resolved", "--operation", id)
	if listed.ok(t); strings.Count(listed.out, "replayed delivered") != 20 {
		t.Errorf("the dead letters of the operation are\n%s", listed.out)
	}
	run(t, "", "dead", "stop", "-f", file, "--operation", id, "--reason", "late").ok(t, "20 of 20 put back, 20 delivered\n")
}

// A replay in a pod serves its progress on /status, retries when a right is missing or the server is killed and shows that,
// and writes its progress at the end where the operator reads it.
// CONTRACT: C-42
func TestReplayRunServesItsStatus(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	o, _ := operatingOn(t, server.DSN("postgres"))
	o.enqueue(t, 10)
	o.makeDead(t)
	login := strings.TrimSuffix(o.owner, "owner") + "replay"
	o.exec(t, "revoke execute on function outbox.outbox_replay_begin from "+login)
	requestFile, message := o.replays(t), filepath.Join(t.TempDir(), "message")
	o.request(t, requestFile, "5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a12", "action: Replay, reason: CHG-812, requestedBy: alice, canary: 4")
	check(t, os.WriteFile(message, nil, 0o600))

	cmd := command(t, "dead", "replay", "--request", requestFile, "--listen", "127.0.0.1:0")
	cmd.Env = append(cmd.Env, "TERMINATION_LOG="+message)
	text := &log{}
	cmd.Stdout, cmd.Stderr = text, text
	check(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // when the test failed
	address := text.address(t)
	current := func() (s status.Status) {
		resp, err := http.Get("http://" + address + status.BriefPath)
		check(t, err)
		defer resp.Body.Close()
		check(t, json.NewDecoder(resp.Body).Decode(&s))
		return s
	}
	await(t, "the missing right is shown", func() bool { return current().Source.Reason == "PermissionDenied" })
	if s := current(); !strings.Contains(s.Source.Message, "--for replay") || s.Schema.State != "Ready" || s.Replay != nil {
		t.Errorf("without a right it says %+v", s)
	}
	o.exec(t, "grant execute on function outbox.outbox_replay_begin to "+login)
	await(t, "the canary is shown", func() bool { s := current(); return s.Replay != nil && s.Replay.Pending == 4 })
	if s := current(); s.Source.State != status.Reachable || s.Replay.Matched != 10 || s.Replay.Waiting != 6 || s.Replay.ID.String() != "5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a12" {
		t.Errorf("the status is %+v, %+v, want 6 of 10 waiting", s, s.Replay)
	}
	server.Kill()
	await(t, "the killed server is shown", func() bool { return current().Source.State == status.Unreachable })
	check(t, server.Restart(t.Context()))
	o.admin.Reset()
	await(t, "the replay continues", func() bool { return current().Source.State == status.Reachable })
	o.exec(t, `update outbox.outbox_events set status = 'delivered' where status = 'pending'`)
	await(t, "the rest is put back", func() bool { return o.count(t, "status = 'pending'") == 6 })
	o.exec(t, `update outbox.outbox_events set status = 'delivered' where status = 'pending'`)
	check(t, cmd.Wait())
	left, err := os.ReadFile(message)
	check(t, err)
	var p status.Replay
	check(t, json.Unmarshal(left, &p))
	if p.Delivered != 10 || p.Done() != 10 || p.ID.String() != "5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a12" || p.FinishedAt.IsZero() || p.StartedAt.IsZero() {
		t.Errorf("the operator reads %+v of %s", p, left)
	}
}
