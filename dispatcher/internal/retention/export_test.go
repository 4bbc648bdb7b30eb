package retention

import (
	"context"
	"time"
)

// Page has the sweeper read one page at a time, and note each.
func (s *Sweeper) Page() { s.maxPages, s.noteEvery = 1, 0 }

// Rest has the sweeper call rest instead of resting.
func (s *Sweeper) Rest(rest func(context.Context, time.Duration)) { s.rest = rest }

// Every is the time between two runs.
func (s *Sweeper) Every() time.Duration { return s.every() }

// RestAfter is how long a run rests after a piece of work.
var RestAfter = restAfter

// Settings are those that statements run with; $1 is the statement timeout.
const Settings = relaxed

// DeliveredSQL is the statement that removes delivered rows, for schema "outbox".
func DeliveredSQL() string { return load("outbox").delivered }

// LettersSQL, LockSQL, ResolvedSQL and ExpiredSQL are those for dead letters.
func DeadLettersSQL() string { return load("outbox").deadLetters }
func LockSQL() string        { return load("outbox").lock }
func ResolvedSQL() string    { return load("outbox").resolved }
func ExpiredSQL() string     { return load("outbox").expired }

// ReplaysSQL is the statement that removes items of replays.
func ReplaysSQL() string { return load("outbox").replays }
