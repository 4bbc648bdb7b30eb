package cli

import (
	"fmt"
	"strings"

	"github.com/outbox-operator/outbox-operator/api/config"
)

// stateFile sets an engine to the state in a file: Running or Paused (CONTRACT C-105). A file that says neither
// changes nothing; the problem is reported without its content, which may be another file's.
type stateFile struct {
	watchedFile
	engine interface {
		Pause()
		Resume()
	}
	last config.State
}

// refresh reads the file, and applies a change.
func (f *stateFile) refresh() {
	state, err := readState(f.path)
	if !f.note(err) || state == f.last {
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

// readState returns what the file says.
func readState(path string) (config.State, error) {
	text, err := readFile("stateFile", path, "write Running or Paused into it", 64)
	if err != nil {
		return "", err
	}
	switch state := config.State(strings.TrimSpace(text)); state {
	case config.Running, config.Paused:
		return state, nil
	default:
		return "", fmt.Errorf("stateFile: %s says neither Running nor Paused; write one of them into it", path)
	}
}
