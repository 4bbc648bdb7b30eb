package cli

import (
	"context"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/report"
)

// rereadEvery is how often files are looked at that may change while the process runs. Those with a login or a
// certificate are read by what uses them.
const rereadEvery = time.Second

// reread looks at the files until ctx ends, and logs each problem once.
func (e *engine) reread(ctx context.Context) {
	tick := time.NewTicker(rereadEvery)
	defer tick.Stop()
	told := map[string]string{} // the last problem of a field
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if e.state != nil {
			e.state.look()
		}
		now := map[string]string{}
		for _, p := range e.pipeline.FileProblems() {
			now[p.Field] = p.Err.Error()
			if told[p.Field] != now[p.Field] {
				e.log.Warn("the schema stays as it was: its file cannot be used", "error", p.Err)
			}
		}
		for field := range told {
			if now[field] == "" {
				e.log.Info("the schema's file can be used again", "field", field)
			}
		}
		told = now
	}
}

// fileProblems are files that cannot be used as they are now.
func (e *engine) fileProblems() (all []report.FileProblem) {
	if e.state != nil {
		all = e.state.problems()
	}
	for _, p := range e.pipeline.FileProblems() {
		all = append(all, report.FileProblem{Field: p.Field, Message: p.Err.Error(), Since: p.Since})
	}
	return all
}
