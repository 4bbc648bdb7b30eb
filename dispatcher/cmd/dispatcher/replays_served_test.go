package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// A replay in a pod serves its progress on /status, retries when the database fails and shows that, and writes
// its progress at the end where the operator reads it.
// CONTRACT: C-42
func TestReplayRunServesItsStatus(t *testing.T) {
	t.Parallel()
	o, file := operating(t)
	o.enqueue(t, 10)
	o.makeDead(t)
	login := strings.TrimSuffix(o.owner, "owner") + "replay"
	o.exec(t, "revoke insert on outbox.outbox_replays from "+login)
	requestFile, message := filepath.Join(t.TempDir(), "request.yaml"), filepath.Join(t.TempDir(), "message")
	check(t, os.WriteFile(requestFile, []byte("id: 5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a12\naction: replay\nreason: CHG-812\nrequestedBy: alice\ncanary: 4\n"), 0o600))
	check(t, os.WriteFile(message, nil, 0o600))

	cmd := command(t, "replay", "run", "-f", file, "--request", requestFile, "--listen", "127.0.0.1:0")
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
	o.exec(t, "grant insert on outbox.outbox_replays to "+login)
	await(t, "the canary is shown", func() bool { s := current(); return s.Replay != nil && s.Replay.Pending == 4 })
	if s := current(); s.Source.State != status.Reachable || s.Replay.Matched != 10 || s.Replay.Waiting != 6 || s.Replay.ID.String() != "5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a12" {
		t.Errorf("the status is %+v, %+v, want 6 of 10 waiting", s, s.Replay)
	}
	o.exec(t, `update outbox.outbox_events set status = 'delivered' where status = 'pending'`)
	await(t, "the rest is put back", func() bool { return o.count(t, "status = 'pending'") == 6 })
	o.exec(t, `update outbox.outbox_events set status = 'delivered' where status = 'pending'`)
	check(t, cmd.Wait())
	left, err := os.ReadFile(message)
	check(t, err)
	var p status.Replay
	check(t, json.Unmarshal(left, &p))
	if p.Delivered != 10 || p.Done() != 10 || p.ID.String() != "5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a12" || p.FinishedAt.IsZero() || p.BeganAt.IsZero() {
		t.Errorf("the operator reads %+v of %s", p, left)
	}
}

// A replay that is stopped by its request before it began moves nothing, whoever runs it later.
// CONTRACT: C-42
func TestReplayStopByRequest(t *testing.T) {
	t.Parallel()
	o, file := operating(t)
	o.enqueue(t, 5)
	o.makeDead(t)
	requestFile := filepath.Join(t.TempDir(), "request.yaml")
	check(t, os.WriteFile(requestFile, []byte("id: 5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a13\naction: replay\nreason: CHG-812\nrequestedBy: alice\n"), 0o600))
	for range 2 {
		run(t, "", "replay", "stop", "-f", file, "--request", requestFile, "--reason", "deleted").ok(t, "5 of 5 done, 5 skipped: stopped; stopped: deleted")
	}
	run(t, "", "replay", "run", "-f", file, "--request", requestFile).ok(t, "5 of 5 done, 5 skipped: stopped; stopped: deleted")
	if n := o.count(t, "status = 'dead'"); n != 5 {
		t.Errorf("%d are dead, want all 5", n)
	}
	check(t, os.WriteFile(requestFile, []byte("action: replay\nreason: CHG-812\nrequestedBy: alice\ndryRun: true\n"), 0o600))
	run(t, "", "replay", "stop", "-f", file, "--request", requestFile, "--reason", "deleted").ended(t, 78, "it is a dry run")
}

// Two replays with the same dead letters run at once. One is killed and run again, the server is killed under both, and
// one is given up half-way: each row is done once, and each replay reports what it did.
// CONTRACT: C-42
func TestOverlappingReplaysSurviveWhatBreaks(t *testing.T) {
	server := pgtest.Server(t)
	o, file := operatingOn(t, server.DSN("postgres"))
	const rows = 400
	o.enqueue(t, rows)
	o.makeDead(t)
	requests, ids := [2]string{}, [2]string{}
	for i := range requests {
		requests[i] = filepath.Join(t.TempDir(), "request.yaml")
		ids[i] = fmt.Sprintf("5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a2%d", i)
		check(t, os.WriteFile(requests[i], fmt.Appendf(nil, "id: %s\naction: replay\nreason: CHG-812\nrequestedBy: alice\nrate: 40\n", ids[i]), 0o600))
	}
	putBack := func(id string) (n int) {
		check(t, o.admin.QueryRow(t.Context(), `select count(*) from outbox.outbox_replay_items where replay_id = $1 and state = 'requeued'`, id).Scan(&n))
		return n
	}
	start := func(request string) (*exec.Cmd, string) {
		message := filepath.Join(t.TempDir(), "message")
		check(t, os.WriteFile(message, nil, 0o600))
		cmd := command(t, "replay", "run", "-f", file, "--request", request, "--listen", "127.0.0.1:0")
		cmd.Env = append(cmd.Env, "TERMINATION_LOG="+message)
		check(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() }) // when the test failed
		return cmd, message
	}
	killed, _ := start(requests[0])
	other, otherLeft := start(requests[1])
	await(t, "the first one puts some back", func() bool { return putBack(ids[0]) >= 30 })
	check(t, killed.Process.Kill())
	_ = killed.Wait() // it was killed
	server.Kill()
	check(t, server.Restart(t.Context()))
	o.admin.Reset()
	// The two go through their dead letters in one request: the one that is behind finds nothing to do. Now it is alone.
	await(t, "the other one puts some back", func() bool { return putBack(ids[1]) >= 30 })
	before := o.count(t, "status = 'dead'")
	again, againLeft := start(requests[0])
	await(t, "both continue", func() bool { return o.count(t, "status = 'dead'") <= before-60 })
	run(t, "", "replay", "stop", "-f", file, "--request", requests[1], "--reason", "enough").ok(t, "stopped: enough")
	for _, cmd := range []*exec.Cmd{again, other} {
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		await(t, "it ends", func() bool {
			o.exec(t, `update outbox.outbox_events set status = 'delivered' where status = 'pending'`)
			select {
			case err := <-ended:
				check(t, err)
				return true
			default:
				return false
			}
		})
	}
	sum := func(path string) status.Replay {
		left, err := os.ReadFile(path)
		check(t, err)
		p := progress(t, string(left))
		total := p.Delivered
		for _, s := range p.Skipped {
			total += s.Count
		}
		// The one that began later did not find what the other had put back by then.
		if p.Matched <= rows/2 || p.Matched > rows || total != p.Matched || p.FinishedAt.IsZero() {
			t.Errorf("the termination message is %s, want up to %d rows, all done", left, rows)
		}
		return p
	}
	a, b := sum(againLeft), sum(otherLeft)
	if a.Delivered+b.Delivered != rows || o.count(t, "status = 'delivered'") != rows || b.Delivered == 0 || b.Stopped != "enough" {
		t.Errorf("they delivered %d and %d of %d; the second one was stopped: %q", a.Delivered, b.Delivered, rows, b.Stopped)
	}
}
