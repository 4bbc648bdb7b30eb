package retention

import (
	"context"
	"time"
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

// ProgressSQL is the statement that writes a run's progress, for schema "outbox".
func ProgressSQL() string { return load("outbox").progress }

// DeliveredSQL is the statement that removes delivered rows, for schema "outbox".
func DeliveredSQL() string { return load("outbox").delivered }

// DeadLettersSQL, LockSQL, ResolvedSQL and ExpiredSQL are those for dead letters.
func DeadLettersSQL() string { return load("outbox").deadLetters }
func LockSQL() string        { return load("outbox").lock }
func ResolvedSQL() string    { return load("outbox").resolved }
func ExpiredSQL() string     { return load("outbox").expired }
