package cli

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-operator/outbox-operator/api/config"
	"github.com/outbox-operator/outbox-operator/dispatcher"
)

type switches struct{ pauses, resumes int }

func (s *switches) Pause()  { s.pauses++ }
func (s *switches) Resume() { s.resumes++ }

// The file is read each second: what has not changed does nothing, and is not logged again.
func TestStateFileIsReadAgain(t *testing.T) {
	var log bytes.Buffer
	engine := &switches{}
	f := &stateFile{watchedFile: watchedFile{field: "stateFile", path: filepath.Join(t.TempDir(), "state"), log: slog.New(slog.NewTextHandler(&log, nil))}, engine: engine, last: config.Running}
	for _, step := range []struct {
		text            string
		pauses, resumes int
		lines           int
		unusable        bool
	}{
		{text: "Running"},
		{text: "Paused\n", pauses: 1, lines: 1},
		{text: "hunter2", pauses: 1, lines: 2, unusable: true},
		{text: "Paused", pauses: 1, lines: 3},
		{text: " Running ", pauses: 1, resumes: 1, lines: 4},
	} {
		if err := os.WriteFile(f.path, []byte(step.text), 0o600); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			f.refresh()
		}
		if engine.pauses != step.pauses || engine.resumes != step.resumes || (len(f.problems()) == 1) != step.unusable {
			t.Errorf("%q: %+v, problems %v, want %d pauses, %d resumes, unusable %t", step.text, engine, f.problems(), step.pauses, step.resumes, step.unusable)
		}
		if n := strings.Count(log.String(), "\n"); n != step.lines {
			t.Errorf("%q: %d lines, want %d:\n%s", step.text, n, step.lines, log.String())
		}
	}
	if strings.Contains(log.String(), "hunter2") {
		t.Error("what the file holds is logged")
	}
}

// Why all topics are paused is what the destination responded last, not the newest failure of some delivery.
func TestPausedTopicsSayWhy(t *testing.T) {
	paused := pausedTopics(dispatcher.Snapshot{
		Breaker: dispatcher.BreakerUnreachable, Sink: dispatcher.LinkState{Known: true, Err: errors.New("connection\x00 refused")}, LastError: "the consumer responded 422",
	})
	if got, want := paused[""], "the destination is Unreachable: connection refused"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
