package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

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
	run(t, "", "migrate", "grants", "--role", login, "--for", "replay", "--apply", "-f", o.file(t, o.owner, "")).ok(t, "granted a replay login's rights on schema outbox to "+login)
	return o, o.file(t, login, "namespace: shop\n")
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
	run(t, "", "dead", "replay", "-f", o.file(t, o.producer, "namespace: shop\n"), "--reason", "CHG-812", "--all").ended(t, 1, "permission denied", "migrate grants --for replay")
	run(t, "", "dead", "replay", "-f", file, "--reason", "CHG-812", "--dead-reason", "poison_message", "--dry-run").ok(t, "would replay 0 of 0\n")
	run(t, "", "dead", "replay", "-f", file, "--reason", "CHG-812", "--id", "1,2,3", "--dry-run").ok(t, "would replay 3 of 3\n")
	run(t, "", "dead", "replay", "-f", file, "--reason", "CHG-812", "--all", "--dry-run").ok(t, "would replay 10 of 10\n")
	others := strings.TrimSuffix(o.owner, "owner") + "replay"
	run(t, "", "dead", "replay", "-f", o.file(t, others, "namespace: shop\ntopics: [bills]\n"), "--reason", "CHG-812", "--all", "--dry-run").ok(t, "would replay 0 of 0\n")
	if n := o.count(t, "status = 'dead'"); n != 10 {
		t.Fatalf("%d dead after refusals and dry runs, want 10", n)
	}

	for _, flag := range []string{"--dry-run", "--rate=20", "--all", "--group=7f3a9c21"} {
		run(t, "", "dead", "replay", "-f", file, "--operation", "5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a11", flag).ended(t, 1, " is for a new replay, and one that exists keeps its set and its rate")
	}
	run(t, "", "dead", "discard", "-f", file, "--reason", "CHG-812", "--topic", "orders", "--group", "").ended(t, 1, "--group is empty; give it a value, or leave it out")
	run(t, "", "dead", "reopen", "-f", file, "--reason", "CHG-812", "--all", "--operation", "").ended(t, 1, "--operation is empty")

	run(t, "", "dead", "replay", "-f", file, "--reason", "CHG-812", "--id", "1,2,3").ok(t, "0 of 3 done\n", "3 of 3 done, 3 not delivered yet\n")
	run(t, "", "dead", "discard", "-f", file, "--reason", "load test", "--requested-by", "alice", "--topic", "orders").ok(t, "7 of 7 done, 7 discarded\n")
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
	if again := keyed(); again != first+" already enqueued\n" {
		t.Errorf("the key of the dead event %s again: %q", first, again)
	}

	// It waits for the outcome of a dispatcher, and says what was delivered.
	p := start(t, o.file(t, o.dispatcher, dispatching("{log: {}}")))
	await(t, "the three are delivered", func() bool { return o.count(t, "status = 'delivered'") == 3 })
	run(t, "", "dead", "reopen", "-f", file, "--reason", "they were no test", "--all", "--limit", "4").ok(t, "4 of 4 done, 4 reopened\n")
	run(t, "", "dead", "reopen", "-f", file, "--reason", "they were no test", "--all").ok(t, "3 of 3 done, 3 reopened\n")
	waited := run(t, "", "dead", "replay", "-f", file, "--reason", "CHG-813", "--all", "--canary", "2", "--wait", "-o", "json")
	waited.ok(t)
	if last := progress(t, waited.out); last.Delivered != 7 || last.FinishedAt.IsZero() || last.Matched != 7 {
		t.Errorf("it ended with %+v", last)
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}

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
	if code := aborted.ProcessState.ExitCode(); code != 1 || !strings.Contains(text.String(), "5 of 5 done, 2 dead again, 3 skipped: stopped") ||
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
	requestFile := filepath.Join(t.TempDir(), "request.yaml")
	write := func(text string) { check(t, os.WriteFile(requestFile, []byte(text), 0o600)) }

	write("action: replay\nreson: x\n")
	run(t, "", "dead", "replay", "-f", file, "--request", requestFile).ended(t, 78, `unknown field "reson"`, "correct it there")
	write("action: replay\nreason: CHG-812\n")
	run(t, "", "dead", "replay", "-f", file, "--request", requestFile).ended(t, 78, "requestedBy: it is missing")
	write("action: replay\nreason: CHG-812\nrequestedBy: alice\n")
	run(t, "", "dead", "replay", "-f", file, "--request", requestFile).ended(t, 78, "id is missing")
	write("id: " + id + "\naction: replay\nreason: CHG-812\nrequestedBy: alice\nfilter: {topic: orders}\ndryRun: true\n")
	run(t, "", "dead", "replay", "-f", file, "--request", requestFile).ok(t, "would replay 20 of 20\n")
	run(t, "", "dead", "operations", "-f", file, "--operation", id).ended(t, 1, "operation "+id+": there is no operation of this id")
	run(t, "", "dead", "operations", "-f", file, "--operation", "x").ended(t, 1, "which is not a UUID")

	// It is killed while it waits for its canary, and then interrupted.
	write("id: " + id + "\naction: replay\nreason: CHG-812\nrequestedBy: alice\nfilter: {topic: orders}\ncanary: 3\nabortAt: 100\n")
	broken := command(t, "dead", "replay", "-f", file, "--request", requestFile)
	broken.Stdout = &log{}
	check(t, broken.Start())
	await(t, "the canary is put back", func() bool { return o.count(t, "status = 'pending'") == 3 })
	check(t, broken.Process.Kill())
	_ = broken.Wait() // it was killed
	run(t, "", "dead", "operations", "-f", file, "--operation", id).ok(t, "replay "+id+": 3 of 20 done, 3 not delivered yet\n  3 wait for a dispatcher that serves their topic, such as ")
	timedOut := run(t, "", "dead", "replay", "-f", file, "--operation", id, "--wait", "--timeout", "1ms")
	timedOut.ended(t, 1, "nothing has happened for 1ms: 3 of 20 done", "3 wait for a dispatcher", "`dispatcher dead replay -f "+file+" --operation "+id+" --wait` continues it")
	others := o.file(t, strings.TrimSuffix(o.owner, "owner")+"replay", "namespace: bills\n")
	run(t, "", "dead", "operations", "-f", others, "--operation", id).ended(t, 1, `of "shop", and not of "bills"; name the file of a dispatcher of "shop"`)
	run(t, "", "dead", "replay", "-f", others, "--operation", id).ended(t, 1, `of "shop", and not of "bills"`)
	run(t, "", "dead", "stop", "-f", others, "--operation", id, "--reason", "x").ended(t, 1, `of "shop", and not of "bills"`)
	o.exec(t, `update outbox.outbox_events set status = 'delivered' where status = 'pending'`)
	interrupted := command(t, "dead", "replay", "-f", file, "--request", requestFile)
	text := &log{}
	interrupted.Stdout, interrupted.Stderr = text, text
	check(t, interrupted.Start())
	await(t, "all is put back", func() bool { return o.count(t, "status = 'pending'") == 17 })
	check(t, interrupted.Process.Signal(os.Interrupt))
	_ = interrupted.Wait() // its exit code is looked at
	if code := interrupted.ProcessState.ExitCode(); code != 1 || !strings.Contains(text.String(), "it was interrupted; `dispatcher dead replay -f "+file+" --operation "+id+" --wait` continues it") {
		t.Errorf("exit code %d:\n%s", code, text)
	}
	o.exec(t, `update outbox.outbox_events set status = 'delivered' where status = 'pending'`)
	message := filepath.Join(t.TempDir(), "message")
	check(t, os.WriteFile(message, nil, 0o600))
	last := command(t, "dead", "replay", "-f", file, "--request", requestFile)
	last.Env = append(last.Env, "TERMINATION_LOG="+message)
	finish(t, last, "").ok(t, "20 of 20 done, 20 delivered\n")
	left, err := os.ReadFile(message)
	check(t, err)
	if p := progress(t, string(left)); p.Delivered != 20 || p.ID.String() != id || p.FinishedAt.IsZero() {
		t.Errorf("the termination message is %s", left)
	}

	// What is listed: the operations, with the login, and the dead letters of one with their outcomes.
	run(t, "", "dead", "operations", "-f", file).ok(t, "OPERATION", "finished", "alice", strings.TrimSuffix(o.owner, "owner")+"replay", "CHG-812", "20 of 20 done, 20 delivered")
	if all := run(t, "", "dead", "operations", "-f", others).out; strings.Contains(all, id) {
		t.Errorf("with the file of another namespace it is listed:\n%s", all)
	}
	listed := run(t, "", "dead", "list", "-f", file, "--resolved", "--operation", id)
	if listed.ok(t); strings.Count(listed.out, "replayed delivered") != 20 {
		t.Errorf("the dead letters of the operation are\n%s", listed.out)
	}
	run(t, "", "dead", "stop", "-f", file, "--operation", id, "--reason", "late").ok(t, "20 of 20 done, 20 delivered\n")
}
