package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
)

// rereadEvery is how often files that may change are read again. Files with a login or a certificate are read by their users.
const rereadEvery = time.Second

// reread reads the files until ctx ends, and logs each problem once.
func (e *process) reread(ctx context.Context) {
	tick := time.NewTicker(rereadEvery)
	defer tick.Stop()
	logged := map[string]string{} // the last problem of a field
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if e.state != nil {
			e.state.refresh()
		}
		if e.verified != nil {
			e.verified.refresh()
		}
		now := map[string]string{}
		for _, p := range e.pipeline.FileProblems() {
			now[p.Field] = p.Err.Error()
			if logged[p.Field] != now[p.Field] {
				e.log.Warn("the schema stays as it was: its file cannot be used", "error", p.Err)
			}
		}
		for field := range logged {
			if now[field] == "" {
				e.log.Info("the schema's file can be used again", "field", field)
			}
		}
		logged = now
	}
}

// watchedFile is a file that is read again and again, with its problem.
type watchedFile struct {
	field, path string // the field of the configuration that names it
	log         *slog.Logger

	mu      sync.Mutex
	problem *status.FileProblem
}

// note notes the outcome of a look, and logs each problem once. It reports whether the file can be used.
func (f *watchedFile) note(err error) (usable bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		if text := err.Error(); f.problem == nil || f.problem.Message != text {
			f.problem = &status.FileProblem{Field: f.field, Message: text, Since: time.Now()}
			f.log.Warn("what a file said before holds: it cannot be used", "field", f.field, "error", text)
		}
		return false
	}
	if f.problem != nil {
		f.problem = nil
		f.log.Info("the file can be used again", "field", f.field)
	}
	return true
}

// problems of the file.
func (f *watchedFile) problems() []status.FileProblem {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.problem == nil {
		return nil
	}
	return []status.FileProblem{*f.problem}
}

// readFile reads a file that a field of the configuration names, up to a bound of bytes. remedy is what
// makes it one that can be read.
func readFile(field, path, remedy string, most int64) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w; %s", field, err, remedy)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, most))
	if err != nil {
		return "", fmt.Errorf("%s: %w; %s", field, err, remedy)
	}
	return string(text), nil
}

// fileProblems are files that cannot be used as they are now.
func (e *process) fileProblems() (all []status.FileProblem) {
	if e.state != nil {
		all = e.state.problems()
	}
	if e.verified != nil {
		all = append(all, e.verified.problems()...)
	}
	for _, p := range e.pipeline.FileProblems() {
		all = append(all, status.FileProblem{Field: p.Field, Message: p.Err.Error(), Since: p.Since})
	}
	return all
}

// stateFile sets an engine to the state in a file: Running or Paused (CONTRACT C-105). A file that says neither
// changes nothing; the problem is reported without its content, which may be another file's.
type stateFile struct {
	watchedFile
	engine interface {
		Pause()
		Resume()
	}
	last spec.State
}

// refresh reads the file, and applies a change.
func (f *stateFile) refresh() {
	state, err := readState(f.path)
	if !f.note(err) || state == f.last {
		return
	}
	f.last = state
	f.log.Info("the state changed", "state", state)
	if state == spec.Paused {
		f.engine.Pause()
	} else {
		f.engine.Resume()
	}
}

// readState returns what the file says.
func readState(path string) (spec.State, error) {
	text, err := readFile("--state-file", path, "write Running or Paused into it", 64)
	if err != nil {
		return "", err
	}
	switch state := spec.State(strings.TrimSpace(text)); state {
	case spec.Running, spec.Paused:
		return state, nil
	default:
		return "", fmt.Errorf("--state-file: %s says neither Running nor Paused; write one of them into it", path)
	}
}

// typesFile makes an engine deliver events of those types alone that a file lists (CONTRACT C-82).
type typesFile struct {
	watchedFile
	engine interface {
		Admit(func(eventType string) bool)
	}
	last []string // nil before the file was read once
}

// refresh reads the file, and applies a change.
func (f *typesFile) refresh() {
	types, err := readTypes(f.path)
	if !f.note(err) || f.last != nil && slices.Equal(types, f.last) {
		return
	}
	f.last = types
	f.log.Info("events of these types are delivered, and others wait: they have a verified consumer", "types", len(types))
	f.engine.Admit(covering(types))
}

// maxTypes bounds the file: what a ConfigMap can hold.
const maxTypes = 1 << 20

// readTypes returns the event types and beginnings of some that the file lists. It is not nil.
func readTypes(path string) (types []string, err error) {
	text, err := readFile("--verified-types-file", path, "write the event types with a verified consumer into it, one a line", maxTypes+1)
	if err != nil {
		return nil, err
	}
	if len(text) > maxTypes {
		return nil, fmt.Errorf("--verified-types-file: %s has more than %d bytes; list fewer event types, or the beginnings of some with *", path, maxTypes)
	}
	types = []string{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r"); line != "" {
			types = append(types, line)
		}
	}
	return types, nil
}

// covering reports of an event type whether one of the list stands for it: itself, or its beginning with * at the end.
func covering(types []string) func(eventType string) bool {
	exact, beginnings := map[string]bool{}, []string{}
	for _, listed := range types {
		if beginning, some := strings.CutSuffix(listed, "*"); some {
			beginnings = append(beginnings, beginning)
		} else {
			exact[listed] = true
		}
	}
	return func(eventType string) bool {
		return exact[eventType] || slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(eventType, b) })
	}
}
