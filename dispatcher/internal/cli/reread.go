package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

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

// problems are those of the file.
func (f *watchedFile) problems() []status.FileProblem {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.problem == nil {
		return nil
	}
	return []status.FileProblem{*f.problem}
}

// readFile reads a file that a field of the configuration names, but no more than so many bytes. remedy is what
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
