package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// A replay in a pod serves its progress on /status, retries when a right is missing or the server is killed and shows that,
// and writes its progress at the end where the operator reads it.
// CONTRACT: C-42
func TestReplayRunServesItsStatus(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	o, file := operatingOn(t, server.DSN("postgres"))
	o.enqueue(t, 10)
	o.makeDead(t)
	login := strings.TrimSuffix(o.owner, "owner") + "replay"
	o.exec(t, "revoke execute on function outbox.outbox_replay_begin from "+login)
	requestFile, message := filepath.Join(t.TempDir(), "request.yaml"), filepath.Join(t.TempDir(), "message")
	check(t, os.WriteFile(requestFile, []byte("id: 5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a12\naction: replay\nreason: CHG-812\nrequestedBy: alice\ncanary: 4\n"), 0o600))
	check(t, os.WriteFile(message, nil, 0o600))

	cmd := command(t, "dead", "replay", "-f", file, "--request", requestFile, "--listen", "127.0.0.1:0")
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
	if p.Delivered != 10 || p.Done() != 10 || p.ID.String() != "5f0c6f6e-5a0c-4a35-9d5b-1d6c8d0f2a12" || p.FinishedAt.IsZero() || p.BeganAt.IsZero() {
		t.Errorf("the operator reads %+v of %s", p, left)
	}
}
