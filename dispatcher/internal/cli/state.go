package cli

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/config"
	"github.com/outbox-operator/outbox-operator/dispatcher/report"
)

// stateFile makes an engine do what a file says: Running or Paused (CONTRACT C-105). A file that says neither
// changes nothing, and is told, but not what it holds: it may be another file than was meant.
type stateFile struct {
	path   string
	engine interface {
		Pause()
		Resume()
	}
	log *slog.Logger

	mu      sync.Mutex
	last    config.State
	problem *report.FileProblem
}

// look reads the file, and passes a change on.
func (f *stateFile) look() {
	state, err := readState(f.path)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		if text := err.Error(); f.problem == nil || f.problem.Message != text {
			f.problem = &report.FileProblem{Field: "stateFile", Message: text, Since: time.Now()}
			f.log.Warn("the state stays as it was: its file cannot be used", "state", f.last, "error", text)
		}
		return
	}
	if f.problem != nil {
		f.problem = nil
		f.log.Info("the state's file can be used again", "state", state)
	}
	if state == f.last {
		return
	}
	f.last = state
	f.log.Info("the state changed", "state", state)
	if state == config.Paused {
		f.engine.Pause()
	} else {
		f.engine.Resume()
	}
}

// problems is what is wrong with the file.
func (f *stateFile) problems() []report.FileProblem {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.problem == nil {
		return nil
	}
	return []report.FileProblem{*f.problem}
}

// readState returns what the file says.
func readState(path string) (config.State, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("stateFile: %w; write Running or Paused into it", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, 64))
	if err != nil {
		return "", fmt.Errorf("stateFile: %w; write Running or Paused into it", err)
	}
	switch state := config.State(strings.TrimSpace(string(text))); state {
	case config.Running, config.Paused:
		return state, nil
	default:
		return "", fmt.Errorf("stateFile: %s says neither Running nor Paused; write one of them into it", path)
	}
}
