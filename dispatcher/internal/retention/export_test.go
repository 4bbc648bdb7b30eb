package retention

import (
	"context"
	"time"

	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sqlfile"
)

// Page makes the sweeper read one page at a time, and write its progress after each.
func (s *Sweeper) Page() { s.maxPages, s.noteEvery = 1, 0 }

// Pause makes the sweeper call pause instead of sleeping.
func (s *Sweeper) Pause(pause func(context.Context, time.Duration)) { s.pause = pause }

// Every is the time between two runs.
func (s *Sweeper) Every() time.Duration { return s.every() }

// PauseAfter is the pause of a run after a piece of work.
var PauseAfter = pauseAfter

// Settings are those that statements run with; $1 is the statement timeout.
const Settings = relaxed

// MaxRows is the most rows that a statement removes.
const MaxRows = maxRows

// Statement returns a statement by its name, for schema "outbox".
func Statement(name string) string { return sqlfile.Reader(files, "outbox")(name) }

// Refused is the error of the last run, while it counts.
func (s *Sweeper) Refused() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused
}
